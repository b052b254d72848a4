// The table's record of one replica: its facts, its storage, and the rules for reading and evicting it.
//
// Guarded by the table's mutex. As soon as the replica can be leased, its id, artifact id, location, manifest
// and `made_by` no longer change, so a lease reads them without the lock.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/request_context.h"
#include "base/steady_time.h"
#include "base/trace_context.h"
#include "core/artifact/manifest.h"
#include "core/disk/artifact_store.h"
#include "core/memory/host_pool.h"
#include "core/replica/availability.h"
#include "core/replica/replica.h"
#include "core/replicas/device_pool.h"
#include "core/replicas/replica_lease.h"

namespace tensorcast {

// The storage of a replica's bytes: at most one of the three is set.
struct ReplicaStorage {
  std::shared_ptr<const HostAllocation> host;
  std::shared_ptr<const DeviceBlock> device;
  std::shared_ptr<PackedFile> file;
};

struct ReplicaRecord {
  ReplicaInfo info;
  std::shared_ptr<const Manifest> manifest;
  std::vector<bool> chunks;  // true for each present chunk
  bool reserved = false;     // a request is asking the eviction guard about it
  uint64_t use_order = 0;    // larger for a replica that was used more recently
  uint64_t begun = 0;        // the number of its last ingest; a later ingest has a larger number
  uint32_t servings = 0;     // leases to serve (ReplicaTable::LeaseOf)
  SteadyTime told_to_stop = SteadyTime::InfiniteFuture();  // when the holders of `servings` were told to stop
  Cancellation ingest;
  TraceContext made_by;
  ReplicaStorage storage;
  std::shared_ptr<Availability> availability;  // set for a filling or partial replica that can be leased
  bool whole = false;                          // while it fills: it will have every chunk
  bool taken_over = false;                     // an ingest took it over and has not begun to fill it
  bool withdrawn = false;                      // it was withdrawn while it filled

  // Whether the replica is filling or partial, and all readers may read its chunks (only in host memory).
  bool CanLeaseFilling() const;
  // Whether the replica is filling or partial, and ingests of this node may read its chunks (also on a
  // device).
  bool CanCopyFilling() const;
  // Whether CanLeaseFilling is true and the replica has these chunks.
  bool Has(std::span<const uint32_t> wanted) const;
  // Whether a lease holds the replica. Leases to serve do not hold a partial replica.
  bool IsHeld() const;
  bool IsEvictable() const;
  // The bytes that the replica takes of its pool.
  uint64_t BytesHeld() const;
  ReplicaMemory Memory() const;
  // Reduces the replica to its verified chunks, with a new availability. Returns the memory that the replica
  // had before.
  std::shared_ptr<const HostAllocation> CutToPresent();
};

// The record of a replica that no ingest made. REQUIRES: its bytes were verified.
std::shared_ptr<ReplicaRecord> MakeReadyRecord(const std::string& node_id,
                                               std::shared_ptr<const Manifest> manifest, Location location,
                                               ReplicaStorage storage);

}  // namespace tensorcast
