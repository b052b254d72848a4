// The reports of an ingest: its progress while it runs, and at its end the times, bytes and outcome of each
// stage with each source. Value types.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "base/trace_context.h"
#include "base/wall_time.h"
#include "core/replica/replica.h"

namespace tensorcast {

// The kind of source from which an ingest gets its bytes.
enum class SourceType { kLocal, kRemote, kDisk };  // tc.source.type
std::string_view SourceTypeName(SourceType type);

// The lanes that are not transports. The names of the transports are in transport/lanes.
inline constexpr std::string_view kLocalLane = "local";    // attach to a daemon of the same host
inline constexpr std::string_view kDiskLane = "disk";      // this node's own packed files and origins
inline constexpr std::string_view kMemoryLane = "memory";  // the host memory of this node or of a client
inline constexpr std::string_view kDeviceLane = "device";  // this node's GPUs
inline constexpr std::string_view kNcclLane = "nccl";      // a broadcast between GPUs
// Equal chunks of another artifact in this node's host memory. The source's name is the id of that artifact.
inline constexpr std::string_view kEqualLane = "equal";
// Chunks that are decoded from a base and differences on this node. The source's name is the id of the base.
// The source's type is kLocal, but the differences may come from other hosts. So both digests are compared
// if distrust_other_hosts (core/engine/engine.h) is set.
inline constexpr std::string_view kDifferenceLane = "difference";

// Identifies a source in errors, logs, spans and reports.
struct SourceInfo {
  SourceType type = SourceType::kLocal;
  std::string lane;             // a transport's name, or one of the names above
  std::string name;             // the name of a node, a path, or what the lane's comment says
  std::string grant_id = {};    // the grant for reading this source; empty: none is needed
  TraceContext span = {};       // span reserved for reading this source, if the serving daemon links to it
  TraceContext made_by = {};    // the ingest that made the source's replica, if known
  std::string replica_id = {};  // the source's replica; empty: the source is not a replica
  bool outside = false;  // a shared origin outside the cluster: all receivers together read each chunk once
  // This receiver's number among the `shares` receivers that the source serves, counted from 0. If the
  // receivers are not known, `share` is 0 and `shares` is 1.
  uint32_t share = 0;
  uint32_t shares = 1;
};

enum class Stage : uint8_t { kFetch, kVerify, kPlace };
std::string_view StageName(Stage stage);

// One stage with one source. Several chunks can be in a stage at the same time, so `busy` can exceed end -
// start.
struct StageReport {
  Stage stage = Stage::kFetch;
  SourceInfo source;
  // Bytes that the stage read or wrote; 0 for kVerify if the source had digested the chunks.
  uint64_t bytes = 0;
  uint32_t chunks = 0;
  // When the stage read or wrote its first and last bytes; equal if there were none.
  SteadyTime start;
  SteadyTime end;
  absl::Duration busy;  // the sum over chunks
  absl::Status status;  // the error, if the source was given up in this stage
};

// Why an ingest stopped using a source.
enum class SourceLoss : uint8_t { kNotOpened, kDied, kTimeout, kBadDigest };
std::string_view SourceLossName(SourceLoss loss);
std::optional<SourceLoss> ParseSourceLoss(std::string_view name);  // nullopt: an unknown name

// The moment at which an ingest continued with another source.
struct SourceChange {
  SourceInfo from;
  SourceInfo to;
  SourceLoss why = SourceLoss::kDied;
  absl::Status status;  // what was wrong with `from`
  uint32_t chunks = 0;  // chunks that were requested from `from` and not delivered
  SteadyTime at;
};

// A source of an ingest, from the time when it joined to the time when it left.
struct SourceReport {
  SourceInfo source;
  bool filling = false;  // the source lacked chunks when it joined, because another ingest filled it
  SteadyTime joined;
  SteadyTime left = SteadyTime::InfiniteFuture();  // InfiniteFuture: the source is in use
  uint64_t bytes = 0;                              // bytes from this source that were placed
  uint32_t chunks = 0;
  absl::Duration asked;            // the time with at least one chunk requested and not delivered
  uint32_t reassigned_chunks = 0;  // requested again from another source because this source was slow
  uint32_t lost_chunks = 0;        // requested and not delivered when the source was given up
  bool direct = false;             // its bytes came into a GPU's memory without passing through host memory
  std::optional<SourceLoss> loss;  // why the source was given up; nullopt: not given up
  absl::Status status;             // why the source was given up; OK: not given up
};

struct TransferReport {
  std::string transfer_id;  // UUID
  std::string artifact_id;
  std::string replica_id;  // the replica that the caller has a lease on, or the replica that failed
  Location destination;
  TraceContext trace;          // of the request that started the ingest
  TraceContext span;           // the ingest's own span, reserved when the ingest was requested
  uint64_t bytes = 0;          // the bytes of fetched chunks that are in their place
  uint64_t bytes_total = 0;    // the bytes of all chunks to fetch
  uint64_t bytes_present = 0;  // bytes of requested chunks that were present at the start; not in bytes_total
  SteadyTime queued;
  SteadyTime start;  // SteadyTime(): the ingest has not begun to run
  SteadyTime end;    // while the ingest runs: the time of this report
  absl::Status status;
  std::vector<StageReport> stages;
  std::vector<SourceReport> sources;  // in the order in which they joined
  absl::Duration fetching;            // the time with at least one chunk requested from any source
  WallTime wall_time;                 // how this node spent the time from `start` to `end`
  std::vector<SourceChange> changes;  // in order of time; only in this node's reports
  uint32_t refetched_chunks = 0;      // fetched again because a source died or delivered wrong bytes
  uint32_t reassigned_chunks = 0;     // requested from another source because the first one was slow
  // Chunks that were compared with the manifest's digests; 0 for a first ingest, which only computes digests.
  uint32_t verified_chunks = 0;
};

struct TransferProgress {
  uint64_t bytes_done = 0;
  uint64_t bytes_total = 0;
  std::vector<SourceReport> sources;  // the sources in use
  std::string waiting_for;            // for people: what the ingest waits for if no source can deliver bytes
  uint64_t bytes_present = 0;         // as in TransferReport
};

}  // namespace tensorcast
