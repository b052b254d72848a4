// The reports of an ingest: its progress while it runs and, at its end, how long each stage took with each
// source. Only these reports have a stage's start, end, bytes and outcome.
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

// What kind of source gives an ingest its bytes.
enum class SourceType { kLocal, kRemote, kDisk };  // tc.source.type
std::string_view SourceTypeName(SourceType type);

// The lanes that are not transport's. (Each transport has its name in transport/lanes.)
inline constexpr std::string_view kLocalLane = "local";    // attach to a daemon of the same host
inline constexpr std::string_view kDiskLane = "disk";      // this node's own packed files and origins
inline constexpr std::string_view kMemoryLane = "memory";  // this node's host memory, or a client's
inline constexpr std::string_view kDeviceLane = "device";  // this node's GPUs
inline constexpr std::string_view kNcclLane = "nccl";      // a broadcast among them
// Equal chunks of another artifact in this node's host memory; the source's name is that artifact's id.
inline constexpr std::string_view kEqualLane = "equal";
// Chunks that are rebuilt from a base and differences, which are replicas of this node; the source's name is
// the id of the base. Such sources are of type kLocal, but their bytes depend on a peer's
// difference: with distrust_other_hosts both digests are compared.
inline constexpr std::string_view kDifferenceLane = "difference";

// Identifies a source in errors, logs, spans and reports.
struct SourceInfo {
  SourceType type = SourceType::kLocal;
  std::string lane;             // a transport's name, or one of those above
  std::string name;             // the place that it reads: a node name, a path
  std::string grant_id = {};    // the grant under which it is read; empty: it needs none
  TraceContext span = {};       // reserved for reading it, if the other end links to that span
  TraceContext made_by = {};    // the ingest that made the replica it reads, if known
  std::string replica_id = {};  // the replica that it reads; empty: it reads no replica
  bool outside = false;  // a shared origin outside the cluster: all receivers together read each chunk once
  // This receiver's number among the receivers that the source serves: `share` of `shares`. 0 of 1: not
  // known.
  uint32_t share = 0;
  uint32_t shares = 1;
};

enum class Stage : uint8_t { kFetch, kVerify, kPlace };
std::string_view StageName(Stage stage);

// One stage with one source. Stages overlap, so busy time can exceed end - start when several chunks are in a
// stage at once.
struct StageReport {
  Stage stage = Stage::kFetch;
  SourceInfo source;
  // Bytes that the stage read or wrote; 0 for kVerify if the source had digested the chunks.
  uint64_t bytes = 0;
  uint32_t chunks = 0;
  // When the stage read or wrote its first and last bytes; equal if there were none.
  SteadyTime start;
  SteadyTime end;
  absl::Duration busy;  // summed over chunks
  absl::Status status;  // if the source was given up in this stage: why
};

// Why an ingest stopped using a source.
enum class SourceLoss : uint8_t { kNotOpened, kDied, kTimeout, kBadDigest };
std::string_view SourceLossName(SourceLoss loss);
std::optional<SourceLoss> ParseSourceLoss(std::string_view name);  // nullopt: an unknown name

// The moment at which an ingest went on with another source.
struct SourceChange {
  SourceInfo from;
  SourceInfo to;
  SourceLoss why = SourceLoss::kDied;
  absl::Status status;  // what was wrong with `from`
  uint32_t chunks = 0;  // chunks that `from` had begun and did not deliver
  SteadyTime at;
};

// A source of an ingest, from the time when it joined to the time when it left.
struct SourceReport {
  SourceInfo source;
  bool filling = false;  // it did not have every chunk when it joined: another ingest was making it
  SteadyTime joined;
  SteadyTime left = SteadyTime::InfiniteFuture();  // while it is in use
  uint64_t bytes = 0;                              // bytes from this source that were placed
  uint32_t chunks = 0;
  absl::Duration asked;            // the time with at least one chunk requested of it and not delivered
  uint32_t reassigned_chunks = 0;  // taken back from it because it was slow
  uint32_t lost_chunks = 0;        // begun and not delivered when the source was given up
  bool direct = false;             // its bytes came into a GPU's memory without passing through host memory
  std::optional<SourceLoss> loss;  // why it was given up; nullopt: it was not
  absl::Status status;             // why it was given up; OK: it was not
};

struct TransferReport {
  std::string transfer_id;  // UUID
  std::string artifact_id;
  std::string replica_id;  // of the replica that the caller was given a lease on, or of the one that failed
  Location destination;
  TraceContext trace;  // of the request that started it
  TraceContext span;   // its own, reserved when it was asked for; what it does is a child of it
  // In chunks that are in their place, and in all that are to be brought.
  uint64_t bytes = 0;
  uint64_t bytes_total = 0;
  // Beside them: in chunks that were asked for and in their place before it began.
  uint64_t bytes_present = 0;
  SteadyTime queued;
  SteadyTime start;  // the default while it waits for its turn
  SteadyTime end;    // of one that runs: when it was looked at
  absl::Status status;
  std::vector<StageReport> stages;
  std::vector<SourceReport> sources;  // in the order in which they came
  absl::Duration fetching;            // the time with at least one chunk requested of any of them
  WallTime wall_time;                 // of this node, from its start to its end
  std::vector<SourceChange> changes;  // in order of time; only in this node's reports
  uint32_t refetched_chunks = 0;      // chunks that were fetched again because a source died or was wrong
  uint32_t reassigned_chunks = 0;     // taken back from a source that was slow
  // Chunks that were compared with the manifest's digests; 0 for a first ingest, which only computes digests.
  uint32_t verified_chunks = 0;
};

struct TransferProgress {
  uint64_t bytes_done = 0;
  uint64_t bytes_total = 0;
  std::vector<SourceReport> sources;  // in use
  std::string waiting_for;            // for people: what the ingest waits for while no source can give bytes
  uint64_t bytes_present = 0;         // as in the report
};

}  // namespace tensorcast
