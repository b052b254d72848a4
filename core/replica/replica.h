// The facts of a replica at one moment, such as its location, its state and its number of chunks. Value
// types. A lease gives access to the bytes (core/replicas/replica_lease.h).
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast {

// The place of a replica on its node: a GPU, host memory, or a packed file.
enum class LocationKind : uint8_t { kGpu, kCpu, kDisk };

struct Location {
  LocationKind kind = LocationKind::kCpu;
  int device = 0;  // ordinal, for kGpu only

  // "gpu:N", "cpu" or "disk".
  std::string ToString() const;
  // INVALID_ARGUMENT for a text that ToString does not return.
  static absl::StatusOr<Location> Parse(std::string_view text);
  friend auto operator<=>(const Location&, const Location&) = default;
};
std::string_view LocationKindName(LocationKind kind);  // "gpu", "cpu", "disk"

// The usual order is allocating, filling, ready, draining, gone. An allocating or filling replica may become
// failed. A filling replica in host memory becomes partial if only some chunks are wanted, or if no more
// chunks come. A partial replica may fill again, or drain. A partial replica serves the chunks that it
// has, but does not count as a copy. Only the engine changes states.
enum class ReplicaState : uint8_t { kAllocating, kFilling, kPartial, kReady, kDraining, kGone, kFailed };
std::string_view ReplicaStateName(ReplicaState state);
bool IsLegalTransition(ReplicaState from, ReplicaState to);

struct ReplicaInfo {
  std::string id;           // UUID, new for each replica
  std::string artifact_id;  // empty while a first ingest computes it
  std::string node_id;      // the replica's node
  Location location;
  std::string device_uuid;  // for a GPU, else empty
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
  SteadyTime ready_since;  // InfiniteFuture: not ready
};

}  // namespace tensorcast
