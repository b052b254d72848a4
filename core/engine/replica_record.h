// Private to the replica table's sources.
#pragma once

#include <string>
#include <vector>

#include "core/engine/replica_table.h"

namespace tensorcast {

// Guarded by the table's mutex. Once the replica is ready, manifest and storage stay as they are until it is
// gone, which is why a lease may use them without the lock.
struct ReplicaTable::Record {
  std::string id;
  std::string artifact_id;
  std::shared_ptr<const Manifest> manifest;
  Location location;
  ReplicaState state = ReplicaState::kAllocating;
  uint64_t image_bytes = 0;
  std::vector<bool> chunks;  // present ones
  uint32_t chunks_present = 0;
  uint32_t leases = 0;
  bool pinned = false;
  bool reserved = false;  // the eviction guard is being asked about it
  absl::Time last_used;
  absl::Time ready_since = absl::InfiniteFuture();
  uint64_t use_order = 0;
  Cancellation ingest;
  TraceContext made_by;
  ReplicaStorage storage;
};

}  // namespace tensorcast
