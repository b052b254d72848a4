// What the engine holds: replicas, their states, and leases on them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/artifact/manifest.h"
#include "core/device/device_runtime.h"
#include "core/memory/host_pool.h"
#include "otel/api/trace_context.h"

namespace tensorcast {

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

// allocating -> filling -> ready -> draining -> gone, or -> failed. Only the engine moves it.
enum class ReplicaState : uint8_t { kAllocating, kFilling, kReady, kDraining, kGone, kFailed };
std::string_view ReplicaStateName(ReplicaState state);
bool IsLegalTransition(ReplicaState from, ReplicaState to);

// A copy of a replica's facts at one moment.
struct ReplicaInfo {
  std::string id;           // UUID, new for each replica
  std::string artifact_id;  // empty while a first ingest computes it
  Location location;
  ReplicaState state = ReplicaState::kAllocating;
  uint64_t image_bytes = 0;
  uint32_t chunks_total = 0;
  uint32_t chunks_present = 0;
  uint32_t leases = 0;
  bool pinned = false;
  absl::Time last_used;    // steady
  absl::Time ready_since;  // steady; InfiniteFuture: not ready yet
};

// Where a ready replica's bytes are; exactly one of the three is meant, by info.location.kind.
struct ReplicaMemory {
  const HostAllocation* host = nullptr;  // kCpu
  DevicePtr device;                      // kGpu: one allocation, image_bytes rounded up to 2 MiB
  int file = -1;                         // kDisk: descriptor of the packed file...
  uint64_t file_image_offset = 0;        // ...and where its image begins
};

// A hold on a ready replica: while it lives the replica is neither evicted nor rewritten. Movable;
// thread-compatible; may outlive the engine's interest in the replica but not the engine.
class ReplicaLease {
 public:
  virtual ~ReplicaLease() = default;
  virtual const std::string& replica_id() const = 0;
  virtual const Location& location() const = 0;
  virtual const std::shared_ptr<const Manifest>& manifest() const = 0;
  virtual const ReplicaMemory& memory() const = 0;
  // The span of the ingest that made the replica; not valid for one that was found at start.
  virtual const otel::TraceContext& made_by() const = 0;
};

}  // namespace tensorcast
