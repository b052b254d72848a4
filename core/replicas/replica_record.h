// One replica as the table keeps it: its facts, what its bytes live in, what may read it and whether it may
// go.
//
// Guarded by the table's mutex. Once the replica can be leased, its id, artifact id, location, manifest and
// `made_by` stay as they are until it is gone, which is why a lease may read them without the lock.
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

// What a finished replica's bytes live in: one of the three.
struct ReplicaStorage {
  std::shared_ptr<const HostAllocation> host;
  std::shared_ptr<const DeviceBlock> device;
  std::shared_ptr<PackedFile> file;
};

struct ReplicaRecord {
  ReplicaInfo info;
  std::shared_ptr<const Manifest> manifest;
  std::vector<bool> chunks;  // present ones
  bool reserved = false;     // the eviction guard is being asked about it
  uint64_t use_order = 0;
  uint64_t begun = 0;                                      // the order of ingests; of the last one
  uint32_t servings = 0;                                   // of the leases, those of LeaseToServe
  SteadyTime told_to_stop = SteadyTime::InfiniteFuture();  // the holders of those; not yet
  Cancellation ingest;
  TraceContext made_by;
  ReplicaStorage storage;
  std::shared_ptr<Availability> availability;  // of one that fills or is partial, and can be leased
  bool whole = false;                          // while it fills: every chunk will be there
  bool taken_over = false;                     // by an ingest that has not come to fill it
  bool withdrawn = false;                      // while it filled

  // It fills or is partial, and what it has can be read: in host memory by all readers; by ingests of this
  // node, on a device too.
  bool CanLeaseFilling() const;
  bool CanCopyFilling() const;
  // CanLeaseFilling, and it has these chunks.
  bool Has(std::span<const uint32_t> wanted) const;
  // Held by each lease; a partial one only by leases that are not to serve.
  bool IsHeld() const;
  bool IsEvictable() const;
  // Of its pool, in whole granules.
  uint64_t BytesHeld() const;
  // Where its bytes are, for a lease.
  ReplicaMemory Memory() const;
  // What was verified stays, with an availability of its own. Gives the memory that the replica had until
  // now.
  std::shared_ptr<const HostAllocation> CutToPresent();
};

// Of a replica that no ingest makes: its bytes were found, and are right.
std::shared_ptr<ReplicaRecord> MakeReadyRecord(const std::string& node_id,
                                               std::shared_ptr<const Manifest> manifest, Location location,
                                               ReplicaStorage storage);

}  // namespace tensorcast
