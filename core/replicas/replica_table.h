// The node's replicas and the only code that moves their states. Leases, pins and the least-recently-used
// order live here too.
//
//   Add ─► allocating ─► filling ─► ready ─► draining ─► gone        a found packed file is ready at once
//              │         │  │ ▲               ▲
//              └──Fail───┘  ▼ │               │
//                 │       partial ────────────┘      of a known artifact in host memory: some of its chunks,
//                 ▼                                  because no others were wanted, or its ingest failed
//               failed, also where a ready one of the same artifact is at the same place already
//
// A ready replica is leased, and one that fills or is partial where its availability is known. It drains when
// it is to go; no new leases are given then, and it is gone when the last one ends. A failed or gone replica
// leaves the table at that moment; of one that failed while it was leased the memory stays until its last
// lease ends.
//
// A partial replica is filled again by the next ingest of its artifact to its place (TakeOver), in more
// memory that shares what there is: leases go on, and the availability grows. So where there is one, nothing
// else of that artifact and place is ready or fills, but for a first ingest, which does not know yet what it
// makes. An availability ends with its ingest's error, and then a partial replica has a new one; so what a
// lease may read stays in its memory although the rest is given back. It ends with OK when all is there, and
// with UNAVAILABLE when the partial replica is to go. No listener is told of either under the mutex.
//
// A reader of a partial replica for others (LeaseToServe) does not keep it from going: it drains, its
// availability ends, they stop, and then its memory is free. A request for memory waits for that (`ending`).
//
// Memory is freed here, without the lock, after its replica left the table; `freeing_` counts it meanwhile,
// so that a request that finds no space knows that some is coming. It waits for `space_events_` to
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
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "core/disk/artifact_store.h"
#include "core/replicas/notifier.h"
#include "core/replicas/pool_holders.h"
#include "core/replicas/replica_lease.h"
#include "core/replicas/replica_record.h"

namespace tensorcast {

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
  // cancelled the replica counts as one that fails soon and gives its memory back. `made_by`: its span.
  void Add(ReplicaInfo replica, std::shared_ptr<const Manifest> manifest, Cancellation ingest,
           TraceContext made_by);
  // partial -> filling: the one of this artifact at this place, where there is one; its id. `ingest` as
  // above.
  std::optional<std::string> TakeOver(std::string_view artifact_id, Location location, Cancellation ingest);
  // What an ingest finds that has taken over; null and null: it has not.
  struct Part {
    std::shared_ptr<const HostAllocation> memory;
    std::shared_ptr<const Availability> chunks;
  };
  Part FindPart(std::string_view id) const;
  // allocating -> filling, or more memory for one that was taken over. `memory`: what the chunks are put
  // into, where that is host or device memory. With it a replica of a known artifact can be leased from here
  // on, on a device by LeaseAnywhere alone. `whole`: all its chunks are there or will be.
  void StartFilling(std::string_view id, ReplicaStorage memory, bool whole);
  // Of a filling one: this chunk is present. From the first that is not verified on, the replica is not given
  // to serve others, and readers that do so meanwhile are told that it ended.
  void AddChunk(std::string_view id, uint32_t chunk, bool verified);
  // allocating, filling -> failed, or partial where it can be leased and any chunk is there: the memory of
  // the others is given back. (One that was taken over and did not come to fill is as it was.) Memory that
  // StartFilling was not given is free already.
  void Fail(std::string_view id, const absl::Status& why);
  // filling -> ready, or partial where chunks are missing (that were not wanted), and a lease on it. Where a
  // ready replica of the same artifact is at the same location already, this one fails instead and its
  // storage is dropped; the lease is on the other. A partial one there drains when this one is ready, and so
  // does one that is not verified whole, if this one is.
  // DATA_LOSS, and the replica still fills: it was withdrawn meanwhile.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> Complete(std::string_view id,
                                                         std::shared_ptr<const Manifest> manifest,
                                                         ReplicaStorage storage);
  // A replica of the previous daemon, in its memory and verified whole: ready from the start, unless there
  // is another one by now. Returns a lease on the one or the other.
  std::unique_ptr<ReplicaLease> AddKept(const std::shared_ptr<const Manifest>& manifest,
                                        HostAllocation memory);
  // A packed file found at start: ready from the beginning.
  void AddPackedFile(std::shared_ptr<PackedFile> file);

  // --- using one
  absl::StatusOr<std::unique_ptr<ReplicaLease>> Lease(std::string_view id);
  absl::StatusOr<std::unique_ptr<ReplicaLease>> Lease(std::string_view artifact_id, Location location);
  // Of a ready replica, or of one that can be leased though it fills or is partial.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> LeaseFilling(std::string_view id);
  // The same, for a holder that ends the lease when its availability ends with an error: it does not keep a
  // partial replica from eviction. FAILED_PRECONDITION of one that is not verified whole.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> LeaseToServe(std::string_view id);
  // As LeaseFilling, for a replica that has these chunks already. NOT_FOUND.
  absl::StatusOr<std::unique_ptr<ReplicaLease>> LeaseChunks(std::string_view artifact_id, Location location,
                                                            std::span<const uint32_t> chunks);
  // Whether the replica can be leased and has these chunks; false where there is none of that id.
  bool HasChunks(std::string_view id, std::span<const uint32_t> chunks) const;
  // A replica of the artifact at any location that is not in `except`: ready ones first, in host memory
  // before devices before disk, then one that fills and can be leased, then a partial one; of equal ones
  // that which began first. As by LeaseToServe; none that is not verified whole.
  //
  // It is for the ingest that makes `receiver`, and one that fills is given to those alone that began after
  // it: so two ingests never wait for each other.
  std::unique_ptr<ReplicaLease> LeaseAnywhere(std::string_view artifact_id, const std::set<Location>& except,
                                              std::string_view receiver);
  // Of these replicas, ready or such as LeaseAnywhere gives, the one that began first; null where there is
  // none.
  std::unique_ptr<ReplicaLease> LeaseEarliest(std::span<const std::string> ids);
  // Waits while one that began before the receiver's has no memory yet, and so cannot be leased; to the
  // context's end at most.
  void AwaitMemoryOfEarlier(std::string_view artifact_id, const std::set<Location>& except,
                            std::string_view receiver, const RequestContext& context) const;
  // How many replicas of the same artifact are being made on GPUs that began after this one, and so may be
  // given it. Waits for so many, to the context's end at most.
  size_t AwaitGpuReceivers(std::string_view id, size_t min, const RequestContext& context) const;

  // --- getting rid of one
  // ready, partial -> draining, and on to gone when no lease is left. FAILED_PRECONDITION when it is neither,
  // or pinned and not `even_pinned`, or held and `only_unheld`. OK for one that is draining already, unless
  // `only_unheld`. A replica is held by each lease, a partial one only by those that are not to serve.
  struct DrainOptions {
    bool even_pinned = false;
    bool only_unheld = false;
  };
  absl::Status Drain(std::string_view id, const DrainOptions& options);
  // Its bytes are not what they should be: it drains, pinned or not, and one that fills fails in the end.
  absl::Status Withdraw(std::string_view id);
  absl::Status SetPinned(std::string_view id, bool pinned);

  // --- making room
  // The least recently used evictable replica of the pool, marked so that no thread takes it too; or nullopt.
  // Partial ones without a reader go first, and those that others are read from last.
  std::optional<ReplicaInfo> ReserveVictim(Location pool, const std::set<std::string>& refused);
  void Unreserve(std::string_view id);
  // Counts a replica that has gone from a pool, by why (tc_pool_evictions_total).
  void CountEviction(Location pool, std::string_view reason);
  uint64_t evictions(Location pool) const;
  PoolHolders Holders(Location pool) const;
  // Counts the moments at which space, or the chance of it, appeared. WaitForSpace blocks until the count is
  // no longer `seen`, or the context ends.
  uint64_t space_events() const;
  void WaitForSpace(uint64_t seen, const RequestContext& context);

  // --- looking
  std::vector<ReplicaInfo> List() const;
  // Which chunks are present, of a replica in any state; NOT_FOUND when it is gone.
  absl::StatusOr<std::vector<bool>> PresentChunks(std::string_view id) const;
  absl::StatusOr<ReplicaInfo> Find(std::string_view id) const;
  // Those of an artifact in any state.
  std::vector<ReplicaInfo> FindArtifact(std::string_view artifact_id) const;
  absl::StatusOr<std::shared_ptr<const Manifest>> FindManifest(std::string_view artifact_id) const;

 private:
  friend class ReplicaLease;
  using RecordPtr = std::shared_ptr<ReplicaRecord>;
  // One that no ingest makes: its bytes were found.
  RecordPtr ReadyRecord(std::shared_ptr<const Manifest> manifest, Location location,
                        ReplicaStorage storage) const;

  // To the context's end at most. `condition` is asked under the mutex.
  void AwaitUnlessCancelled(const RequestContext& context, absl::FunctionRef<bool()> condition) const;
  void Move(ReplicaRecord& record, ReplicaState to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Notify(const ReplicaRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Touch(ReplicaRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  RecordPtr Get(std::string_view id) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  RecordPtr FindIn(ReplicaState state, std::string_view artifact_id, Location location) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<RecordPtr> FindFilling(std::string_view id) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // All that Drain does but for freeing what it gives; it ends `availability` first, where that is set.
  struct Drained {
    std::shared_ptr<Availability> availability;
    std::optional<ReplicaStorage> storage;
    Location pool;
  };
  Drained DrainLocked(const RecordPtr& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(Drained drained) ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<const HostAllocation> HostOf(const ReplicaRecord& record) const ABSL_LOCKS_EXCLUDED(mutex_);
  std::unique_ptr<ReplicaLease> LeaseLocked(const RecordPtr& record, bool to_serve = false)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndLease(const RecordPtr& record, bool to_serve) ABSL_LOCKS_EXCLUDED(mutex_);
  ReplicaStorage TakeGone(const RecordPtr& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::optional<ReplicaStorage> TakeFailed(const RecordPtr& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FreeStorage(ReplicaStorage storage, Location pool) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string node_id_;
  const DeviceRuntime* const devices_;
  Notifier* const notifier_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, RecordPtr> records_ ABSL_GUARDED_BY(mutex_);
  std::set<RecordPtr> failed_ ABSL_GUARDED_BY(mutex_);       // and leased: their memory is there yet
  std::map<Location, int> freeing_ ABSL_GUARDED_BY(mutex_);  // replicas gone, their memory not free yet
  std::map<Location, uint64_t> evictions_ ABSL_GUARDED_BY(mutex_);
  uint64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;  // ingests
  uint64_t uses_ ABSL_GUARDED_BY(mutex_) = 0;   // orders replicas where the clock does not
  uint64_t space_events_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tensorcast
