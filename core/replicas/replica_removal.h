// Removes replicas for reasons other than room: on request, because their artifact was deleted, because their
// packed file is lost, or because their device is broken. A packed file is removed after its disk replica.
//
// `disk_names` has one lock for each packed file. An ingest that writes the file and a removal of the file
// both take the lock. So the removal of an old replica never removes the file of a new replica.
//
// Thread-safe. Blocks on the eviction guard and on the disk.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/device/device_runtime.h"
#include "core/disk/artifact_store.h"
#include "core/replicas/callbacks.h"
#include "core/replicas/name_locks.h"
#include "core/replicas/replica_table.h"

namespace tensorcast {

class ReplicaRemoval {
 public:
  // All pointers must outlive this object; `devices`, `store` and `guard` may be null.
  ReplicaRemoval(ReplicaTable* table, const DeviceRuntime* devices, ArtifactStore* store,
                 NameLocks* disk_names, EvictionGuard* guard)
      : table_(table), devices_(devices), store_(store), disk_names_(disk_names), guard_(guard) {}

  // NOT_FOUND for an unknown replica. FAILED_PRECONDITION if the replica is pinned, allocating or filling,
  // or, without `force`, if the guard refuses. UNAVAILABLE if the guard cannot decide now.
  absl::Status Evict(std::string_view replica_id, bool force);
  // For a deleted artifact: removes its packed file, its partial replicas, and its replicas that were ready
  // at `as_of`, even pinned replicas.
  absl::Status RemoveArtifact(std::string_view artifact_id, SteadyTime as_of);
  // For an artifact that was deleted during an ingest: removes the replica that the ingest made. Other
  // replicas stay, because the artifact may have been put again.
  absl::Status RemoveMade(std::string_view replica_id, std::string_view artifact_id);
  // Removes the artifact's disk replica if another process removed or replaced its file.
  void DropIfLost(const std::string& artifact_id);
  // DropIfLost for all artifacts.
  void DropAllLost();
  // Removes the ready replicas of unhealthy devices, even pinned replicas. The ingest of a filling replica
  // fails at its next copy.
  void WithdrawUnhealthy();

 private:
  void DrainDeleted(const ReplicaInfo& replica);
  absl::Status RemovePackedFile(const std::string& artifact_id);

  ReplicaTable* const table_;
  const DeviceRuntime* const devices_;
  ArtifactStore* const store_;
  NameLocks* const disk_names_;
  EvictionGuard* const guard_;
};

}  // namespace tensorcast
