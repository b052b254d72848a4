// `tensorcast bench`: what a cluster of real processes on this machine does, measured beside what the machine
// can do.
//
// Every Run function starts the processes that it needs, measures its figure and the reference in turn,
// `runs` times (A B A B), and stops everything. Say lines go to stderr. Call from the main thread: children
// die with the thread that started them. Errors: those of the cluster and the client; CANCELLED when the
// context is.
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
  std::string binary;      // the tensorcast executable, which the servers are started from
  std::string own_binary;  // the one that runs, which has the servers of references
  uint64_t bytes = 0;      // 0: each benchmark's own size
  int runs = 0;            // 0: each benchmark's own count
  // p2p, telemetry: of transport/lanes; telemetry: "ResolveKey", too. Empty: "local", "tcp" and that.
  std::vector<std::string> lanes;
  std::vector<std::string> sets;  // settings for every daemon, as for --set
  bool tls = false;               // p2p, control, fan-out: between processes with certificates
  double sampling_ratio = 1;      // telemetry: the share of traces that is recorded
  bool smoke = false;             // tiny and short: proves that it runs, measures nothing
  RequestContext context;

  // What was asked for, else the smoke run's, else the benchmark's own.
  uint64_t BytesOr(uint64_t own, uint64_t of_smoke) const {
    return bytes != 0 ? bytes : smoke ? of_smoke : own;
  }
  int RunsOr(int own, int of_smoke = 1) const { return runs != 0 ? runs : smoke ? of_smoke : own; }
};

using Rows = std::vector<Row>;

// Host to host between two daemons: whole materialize, verification included. References: one thread's plain
// copy, and ucx_perftest and iperf3 where they are installed; with certificates, the same in clear.
absl::StatusOr<Rows> RunP2p(const BenchOptions& options);
// A client gets a mapped view of a ready replica: a large one beside one of 1 MiB.
absl::StatusOr<Rows> RunAttach(const BenchOptions& options);
// ResolveKey by 64 callers, beside a call on the same server set-up that does nothing; with certificates,
// beside connections in clear.
absl::StatusOr<Rows> RunControl(const BenchOptions& options);
// A safetensors file to a ready host replica, with a cold and a warm page cache, and attached once it is
// there.
absl::StatusOr<Rows> RunLoad(const BenchOptions& options);
// Arrays of a client to a ready replica: the first put of a client and a daemon, the later ones, and what
// both processes take of memory beyond the arrays and the pool.
absl::StatusOr<Rows> RunPut(const BenchOptions& options);
struct VersionsOptions {
  std::string only;              // "put", "fold", "link" or "update"; empty: all of them
  double changed_percent = 1.4;  // of the elements, in a step
};

// A new version for nodes that have the one before: a put with a base beside one without; a get by difference
// beside the whole one over a link of 10 Gbit/s, and by eight differences beside one; seven nodes that follow
// a key, behind links of 400 Mbit/s. "link" and "update" take root.
absl::StatusOr<Rows> RunVersions(const BenchOptions& options, const VersionsOptions& versions);

// Resident memory of a daemon beyond its pools, idle and after many transfers.
absl::StatusOr<Rows> RunMemory(const BenchOptions& options);

// What telemetry costs: transfers over each lane and ResolveKey by 64 callers, with everything on
// beside the same with telemetry off; and what a process holds when its collector is dead.
absl::StatusOr<Rows> RunTelemetry(const BenchOptions& options);

// What is done to one daemon in the middle of each run.
struct FanOutFault {
  // The first source, or of the receivers the one that has given most to others by then.
  enum class Victim { kSource, kReceiver };
  Victim victim = Victim::kSource;
  bool kill = true;  // else it is stopped, and goes on when the others have ended
  // When: once the receivers have this share of the image together; 1: each chunk is somewhere beside the
  // source.
  double share_held = 1;
};

struct FanOutOptions {
  int nodes = 8;                           // daemons
  int sources = 1;                         // of them, the first ones, have the model; the others get it
  int per_host = 1;                        // daemons that share a host and its link
  uint64_t bits_per_second = 400'000'000;  // of each host's link, each way
  absl::Duration arrivals;                 // between a receiver's beginning and the next one's
  int slow = 0;                            // hosts, the last ones, with links of another rate
  uint64_t slow_bits_per_second = 0;
  int artifacts = 1;  // of the same size, which every receiver gets side by side
  std::optional<FanOutFault> fault;
};

// A model from few nodes to all others, on hosts behind links of their own (network namespaces: needs
// root), beside a plain copy over one link. Receivers that fail are counted, not an error of the benchmark.
absl::StatusOr<Rows> RunFanOut(const BenchOptions& options, const FanOutOptions& fan_out);

struct ExplainOptions {
  uint64_t seed = 1;                     // of kinds and strengths
  std::vector<std::string> bottlenecks;  // of BottleneckNames: with these together alone; empty: drawn
};

std::vector<std::string> BottleneckNames();
// Bottlenecks of random kinds and strengths, alone and in pairs, each made on purpose (network namespaces:
// needs root): whether explain names the cause and the hop, and its share of the time beside 1 - time without
// / time with. `runs`: how many of them.
absl::StatusOr<Rows> RunExplain(const BenchOptions& options, const ExplainOptions& explain);

// Onto this machine's GPUs and from one to another, beside plain copies, the rate of the devices' memory and
// NCCL alone; attaching to a replica on a GPU. `nccl`: the library's path; empty: the system's. UNAVAILABLE
// without a GPU; what takes more of them, or NCCL, is left out where it is missing.
absl::StatusOr<Rows> RunGpu(const BenchOptions& options, const std::string& nccl);

// The reference server of RunControl, a process of its own: answers ResolveKey with an empty message, writes
// the ready line to `ready_fd` and serves until SIGTERM, which the caller has blocked.
absl::Status ServeEmptyCalls(int ready_fd);

// The collector of RunTelemetry, a process of its own in the same way: prints what it was told of spans at
// the end.
absl::Status ServeCollector(int ready_fd);

}  // namespace tensorcast::bench
