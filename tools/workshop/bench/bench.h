// `tensorcast bench`: measures a cluster of real processes on this machine beside references of the machine.
//
// Every Run function starts the processes that it needs, measures its figure and the reference in turn,
// `runs` times (A B A B), and stops everything. Progress lines go to stderr. Call it from the main thread:
// children end with the thread that started them. Errors: those of the cluster and the client; CANCELLED when
// the context is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "tools/workshop/bench/row.h"

namespace tensorcast::bench {

struct BenchOptions {
  std::string binary;      // the tensorcast executable, from which servers are started
  std::string own_binary;  // the running executable, which has the servers of references
  uint64_t bytes = 0;      // 0: the benchmark's default
  int runs = 0;            // 0: the benchmark's default
  // For p2p and telemetry: names of transport/lanes; for telemetry also "ResolveKey". Empty: "local", "tcp"
  // and, for telemetry, "ResolveKey".
  std::vector<std::string> lanes;
  std::vector<std::string> sets;  // settings for every daemon, as for --set
  bool tls = false;               // for p2p, control and fan-out: between processes with certificates
  double sampling_ratio = 1;      // for telemetry: the recorded share of traces
  bool recorder = false;          // for telemetry: the flight recorder in place of telemetry
  bool smoke = false;             // tiny and short: proves that the benchmark runs, measures nothing
  RequestContext context;

  // The value of the command line, else of the smoke run, else the benchmark's own.
  uint64_t BytesOr(uint64_t own, uint64_t of_smoke) const {
    return bytes != 0 ? bytes : smoke ? of_smoke : own;
  }
  int RunsOr(int own, int of_smoke = 1) const { return runs != 0 ? runs : smoke ? of_smoke : own; }
};

using Rows = std::vector<Row>;

// Host to host between two daemons: a whole materialize, including verification. References: one thread's
// plain copy, and ucx_perftest and iperf3 if they are installed; with certificates, the same in clear.
absl::StatusOr<Rows> RunP2p(const BenchOptions& options);
// A client gets a mapped view of a ready replica: of a large one, beside one of 1 MiB.
absl::StatusOr<Rows> RunAttach(const BenchOptions& options);
// ResolveKey by 64 callers, beside a call on the same server setup that does nothing; with certificates,
// beside connections in clear.
absl::StatusOr<Rows> RunControl(const BenchOptions& options);
// A safetensors file to a ready host replica, with a cold and a warm page cache; and attaching to the ready
// replica.
absl::StatusOr<Rows> RunLoad(const BenchOptions& options);
// A client's arrays to a ready replica: the first put of a client and a daemon, later puts, and the memory of
// both processes beyond the arrays and the pool.
absl::StatusOr<Rows> RunPut(const BenchOptions& options);
struct VersionsOptions {
  std::string only;              // "put", "fold", "link" or "update"; empty: all
  double changed_percent = 1.4;  // changed elements per step
};

// A new version for nodes with the previous one. A put with a base beside one without; a get by difference
// beside a whole one over a link of 10 Gbit/s, and by eight differences beside one; seven nodes that follow a
// key, behind links of 400 Mbit/s. "link" and "update" need root.
absl::StatusOr<Rows> RunVersions(const BenchOptions& options, const VersionsOptions& versions);

// Resident memory of a daemon beyond its pools, idle and after many transfers.
absl::StatusOr<Rows> RunMemory(const BenchOptions& options);

// The cost of telemetry: transfers over each lane, and ResolveKey by 64 callers, with all telemetry on beside
// telemetry off; and the memory of a process with a dead collector. Or with the flight recorder alone, beside
// the same without it.
absl::StatusOr<Rows> RunTelemetry(const BenchOptions& options);

// The fault of one daemon in the middle of each run.
struct FanOutFault {
  // The first source, or the receiver that has given the most bytes to others by then.
  enum class Victim { kSource, kReceiver };
  Victim victim = Victim::kSource;
  bool kill = true;  // false: it is stopped, and continued when the others have ended
  // The moment: when the receivers together have this share of the image; 1: each chunk is at a receiver.
  double share_held = 1;
};

struct FanOutOptions {
  int nodes = 8;                           // daemons
  int sources = 1;                         // number of daemons, the first ones, that have the model; the
                                           // others get it
  int per_host = 1;                        // daemons that share a host and its link
  uint64_t bits_per_second = 400'000'000;  // of each host's link, each way
  absl::Duration arrivals;                 // time between the beginnings of two receivers
  int slow = 0;                            // number of hosts, the last ones, with links of another rate
  uint64_t slow_bits_per_second = 0;
  int artifacts = 1;  // of equal size; every receiver gets them side by side
  std::optional<FanOutFault> fault;
};

// A model from few nodes to all others, on hosts with separate links (network namespaces: needs root), beside
// a plain copy over one link. Receivers that fail are counted; they are not an error of the benchmark.
absl::StatusOr<Rows> RunFanOut(const BenchOptions& options, const FanOutOptions& fan_out);

struct ExplainOptions {
  uint64_t seed = 1;                     // of the kinds and strengths
  std::vector<std::string> bottlenecks;  // names of BottleneckNames: only these, together; empty: random ones
};

std::vector<std::string> BottleneckNames();
// Makes bottlenecks of random kinds and strengths, alone and in pairs (network namespaces: needs root).
// Measures whether explain names the cause and the hop, and its share of the time beside 1 - time without /
// time with. `runs`: the number of bottlenecks.
absl::StatusOr<Rows> RunExplain(const BenchOptions& options, const ExplainOptions& explain);

// Copies onto this machine's GPUs and between them, beside plain copies, the rate of the devices' memory and
// NCCL without TensorCast; and attaching to a replica on a GPU. `nccl`: the library's path; empty: the
// system's. UNAVAILABLE without a GPU; parts that need more GPUs, or NCCL, are left out if these are missing.
absl::StatusOr<Rows> RunGpu(const BenchOptions& options, const std::string& nccl);

// The reference server of RunControl, in a process of its own: answers ResolveKey with an empty message,
// writes the ready line to `ready_fd` and serves until SIGTERM, which the caller has blocked.
absl::Status ServeEmptyCalls(int ready_fd);

// The collector of RunTelemetry, in a process of its own like the reference server: at its end prints the
// numbers of spans that it was told.
absl::Status ServeCollector(int ready_fd);

}  // namespace tensorcast::bench
