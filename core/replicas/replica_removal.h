// Removes replicas for reasons other than room: on request, because their artifact was deleted, because their
// packed file is lost, or because their device is broken. A packed file is removed with its disk replica,
// never before it.
//
// Files appear (committed, then ready) and go (drained, then removed) under a lock for each name, which
// ingests that write files take, too. The removal of an old replica therefore never takes the file of a new
// one.
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
  // All must outlive it; `devices`, `store` and `guard` may be null.
  ReplicaRemoval(ReplicaTable* table, const DeviceRuntime* devices, ArtifactStore* store,
                 NameLocks* disk_names, EvictionGuard* guard)
      : table_(table), devices_(devices), store_(store), disk_names_(disk_names), guard_(guard) {}

  // FAILED_PRECONDITION when the replica is pinned, or when the guard refuses without `force`.
  absl::Status Evict(std::string_view replica_id, bool force);
  // Removes every replica of a deleted artifact that was ready at `as_of` or is partial, pinned or not, and
  // its packed file.
  absl::Status RemoveArtifact(std::string_view artifact_id, SteadyTime as_of);
  // Removes the replica that an ingest made of an artifact that was deleted meanwhile. Other replicas stay,
  // since the artifact may have been put again.
  absl::Status RemoveMade(std::string_view replica_id, std::string_view artifact_id);
  // Drops the artifact's disk replica if another process removed or replaced its file.
  void DropIfLost(const std::string& artifact_id);
  void DropAllLost();
  // Withdraws the ready replicas of unhealthy devices, pinned or not. A filling replica fails by itself,
  // since its next copy fails.
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
