// What is known of a replica at a moment: its place, its state and how far it is filled. Values, without the
// memory or the file behind them (core/replicas/replica_lease.h), so that code that coordinates or shows
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

// allocating -> filling -> ready -> draining -> gone, or -> failed. One in host memory of which some chunks
// are enough, or of which no more came, rests as partial between filling and either filling again or
// draining: it gives what it has and is never a copy. Only the engine moves it.
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
  // Of those, the ones compared with no digest. With any a replica is not a source or a copy: it is for
  // the clients of its node alone.
  uint32_t chunks_unverified = 0;
  uint32_t leases = 0;
  bool pinned = false;
  SteadyTime last_used;
  SteadyTime ready_since;  // InfiniteFuture: not ready yet
};

}  // namespace tensorcast
