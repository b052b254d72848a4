// The facts of a replica at one moment: its location, its state and how many chunks it has. Values, without
// the replica's memory or file (core/replicas/replica_lease.h), so that code that coordinates or shows
// replicas links neither devices nor disks.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast {

// Where on a node a replica is: a GPU, host memory, or a packed file. A value.
enum class LocationKind : uint8_t { kGpu, kCpu, kDisk };

struct Location {
  LocationKind kind = LocationKind::kCpu;
  int device = 0;  // ordinal, for kGpu only

  // "gpu:N", "cpu" or "disk".
  std::string ToString() const;
  static absl::StatusOr<Location> Parse(std::string_view text);
  friend auto operator<=>(const Location&, const Location&) = default;
};
std::string_view LocationKindName(LocationKind kind);  // "gpu", "cpu", "disk"

// allocating -> filling -> ready -> draining -> gone, or -> failed. A replica in host memory that needs only
// some chunks, or that gets no more chunks, becomes partial after filling, and later fills again or drains. A
// partial replica serves the chunks that it has, but does not count as a copy. Only the engine changes
// states.
enum class ReplicaState : uint8_t { kAllocating, kFilling, kPartial, kReady, kDraining, kGone, kFailed };
std::string_view ReplicaStateName(ReplicaState state);
bool IsLegalTransition(ReplicaState from, ReplicaState to);

// A copy of a replica's facts at one moment.
struct ReplicaInfo {
  std::string id;           // UUID, new for each replica
  std::string artifact_id;  // empty while a first ingest computes it
  std::string node_id;      // the node that has it
  Location location;
  std::string device_uuid;  // of a GPU
  ReplicaState state = ReplicaState::kAllocating;
  uint64_t image_bytes = 0;
  uint32_t chunks_total = 0;
  uint32_t chunks_present = 0;
  // Present chunks that were not compared with a digest. A replica with such chunks serves only the clients
  // of its node: it is neither a source nor a copy.
  uint32_t chunks_unverified = 0;
  uint32_t leases = 0;
  bool pinned = false;
  SteadyTime last_used;
  SteadyTime ready_since;  // InfiniteFuture: not ready yet
};

}  // namespace tensorcast
