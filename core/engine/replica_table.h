// The node's replicas and the only code that moves their states. Leases, pins and the least-recently-used
// order live here too.
//
//   Add ─► allocating ─► filling ─► ready ─► draining ─► gone        a found packed file is ready at once
//              └──── Fail ────┘└► failed, where a ready one of the same artifact is there already
//
// Only a ready replica is leased. It drains when it is to go; no new leases are given then, and it is gone
// when the last one ends. A failed or gone replica leaves the table at that moment.
//
// Memory is freed here, without the lock, after its replica left the table; `freeing_` counts it meanwhile,
// so that who finds no space knows that some is coming. Whoever waits for space waits for `space_events_` to
// move: it counts every moment at which there may be more, after the memory is free.
//
// Thread-safe. One mutex over everything, the notifier's is the only one taken under it. No call blocks on
// anything but freeing memory and, where it says so, waiting for space.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "core/disk/artifact_store.h"
#include "core/engine/device_pool.h"
#include "core/engine/notifier.h"
#include "core/engine/replica_lease.h"

namespace tensorcast {

// What a finished replica's bytes live in: one of the three.
struct ReplicaStorage {
  std::unique_ptr<HostAllocation> host;
  DeviceBlock device;
  std::shared_ptr<PackedFile> file;
};

// What holds one pool (all locations of one kind, or one device): replicas and their bytes by what keeps them
// there.
struct PoolHolders {
  struct Share {
    int replicas = 0;
    uint64_t bytes = 0;  // whole granules
  };
  Share leased;  // or draining until its leases end
  Share pinned;  // and not leased
  Share filling;
  Share idle;            // could be evicted
  bool in_flux = false;  // memory is coming back without anyone's doing: a guard is asked, an ingest winds up
};

class ReplicaTable {
 public:
  // `node_id` and the UUIDs of `devices` (may be null) are said in each replica's facts.
  ReplicaTable(std::string node_id, const DeviceRuntime* devices, Notifier* notifier)
      : node_id_(std::move(node_id)), devices_(devices), notifier_(notifier) {}
  // REQUIRES: no lease is left.
  ~ReplicaTable();
  ReplicaTable(const ReplicaTable&) = delete;
  ReplicaTable& operator=(const ReplicaTable&) = delete;

  // --- making a replica; the ids are those of replicas in the state that each move starts from.
  // -> allocating. Of `replica` the id, the artifact id (empty until a first ingest has computed it), the
  // location, the bytes and the number of chunks; no manifest with an empty artifact id. Once `ingest` is
  // cancelled the replica counts as one that fails soon, whose memory comes back. `made_by`: its span.
  void Add(ReplicaInfo replica, std::shared_ptr<const Manifest> manifest, Cancellation ingest,
           TraceContext made_by);
  void StartFilling(std::string_view id);              // allocating -> filling
  void AddChunk(std::string_view id, uint32_t chunk);  // of a filling one: this chunk is present
  void Fail(std::string_view id);  // allocating, filling -> failed; its memory is free already
  // filling -> ready, and a lease on it. Where a ready replica of the same artifact is at the same location
  // already, this one fails instead and its storage is dropped; the lease is on the other.
  std::unique_ptr<ReplicaLease> MakeReady(std::string_view id, std::shared_ptr<const Manifest> manifest,
                                          ReplicaStorage storage);
  // A packed file found at start: ready from the beginning.
  void AddPackedFile(std::shared_ptr<PackedFile> file);

  // --- using one
  absl::StatusOr<std::unique_ptr<ReplicaLease>> Lease(std::string_view id);
  absl::StatusOr<std::unique_ptr<ReplicaLease>> Lease(std::string_view artifact_id, Location location);
  // A ready replica of the artifact at any location that is not in `except`: host memory before devices
  // before disk.
  std::unique_ptr<ReplicaLease> LeaseAnywhere(std::string_view artifact_id, const std::set<Location>& except);

  // --- getting rid of one
  // ready -> draining, and on to gone when no lease is left. FAILED_PRECONDITION when it is not ready, or
  // pinned and not `even_pinned`, or leased and `only_idle`. OK for one that is draining already, unless
  // `only_idle`.
  struct DrainOptions {
    bool even_pinned = false;
    bool only_idle = false;
  };
  absl::Status Drain(std::string_view id, const DrainOptions& options);
  absl::Status SetPinned(std::string_view id, bool pinned);

  // --- making room
  // The least recently used evictable replica of the pool, marked so that nobody else picks it, or nullopt.
  std::optional<ReplicaInfo> ReserveVictim(Location pool, const std::set<std::string>& refused);
  void Unreserve(std::string_view id);
  PoolHolders Holders(Location pool) const;
  // Counts the moments at which space, or the chance of it, appeared. WaitForSpace blocks until the count is
  // no longer `seen`, or the context ends.
  uint64_t space_events() const;
  void WaitForSpace(uint64_t seen, const RequestContext& context);

  // --- looking
  std::vector<ReplicaInfo> List() const;
  absl::StatusOr<ReplicaInfo> Find(std::string_view id) const;
  // Those of an artifact in any state.
  std::vector<ReplicaInfo> FindArtifact(std::string_view artifact_id) const;
  absl::StatusOr<std::shared_ptr<const Manifest>> FindManifest(std::string_view artifact_id) const;

 private:
  friend class ReplicaLease;
  using RecordPtr = std::shared_ptr<ReplicaRecord>;

  void Move(ReplicaRecord& record, ReplicaState to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Notify(const ReplicaRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Touch(ReplicaRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  RecordPtr Get(std::string_view id) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  RecordPtr FindReady(std::string_view artifact_id, Location location) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool Evictable(const ReplicaRecord& record) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  std::unique_ptr<ReplicaLease> LeaseLocked(const RecordPtr& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndLease(const RecordPtr& record) ABSL_LOCKS_EXCLUDED(mutex_);
  ReplicaStorage TakeGone(const RecordPtr& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FreeStorage(ReplicaStorage storage, Location pool) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string node_id_;
  const DeviceRuntime* const devices_;
  Notifier* const notifier_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, RecordPtr> records_ ABSL_GUARDED_BY(mutex_);
  std::map<Location, int> freeing_ ABSL_GUARDED_BY(mutex_);  // replicas gone whose memory is not free yet
  uint64_t uses_ ABSL_GUARDED_BY(mutex_) = 0;                // orders replicas where the clock does not
  uint64_t space_events_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tensorcast
