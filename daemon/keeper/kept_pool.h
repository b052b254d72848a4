// Keeps the host pool beyond the life of its daemon. A keeper holds the pool's segments, a record of each
// ready replica in them, and the processes attached to these replicas. When a daemon starts, it takes back
// what the previous daemon left.
//
// A replica to which a process of the previous daemon is still attached stays leased until that process ends
// or gets a new lease: its memory is not given away while it is read.
//
// Call in this order: Open, TakeSegments, OnReplaced from the pool, Attach with that pool, SetEngine,
// TakeReplicas for the engine. From then on this object is the engine's listener, and passes notifications
// on. Thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/engine/engine.h"
#include "core/handles/handles.h"
#include "core/memory/host_pool.h"
#include "core/replicas/callbacks.h"
#include "core/replicas/kept_replicas.h"
#include "core/replicas/replica_lease.h"
#include "daemon/keeper/attachments.h"
#include "daemon/keeper/keeper.h"
#include "daemon/keeper/kept_record.h"
#include "daemon/keeper/unserved_segments.h"
#include "proto/daemon.pb.h"

namespace tensorcast::daemon {

class KeptPool final : public ReplicaListener {
 public:
  // `argv` as for KeeperClient.
  static absl::StatusOr<std::unique_ptr<KeptPool>> Open(const std::string& socket,
                                                        std::vector<std::string> argv);

  // The size of the kept segments, if it suits a pool of `pool_bytes`; else `otherwise`.
  uint64_t SegmentBytes(uint64_t pool_bytes, uint64_t otherwise) const;
  // The kept segments to reuse, at most `max_bytes`. Segments that processes map come first, then those of
  // whole replicas; replicas that need few segments precede those that need many. Adds new segments, without
  // a descriptor, to reserve room for mapped memory that does not fit in the pool.
  std::vector<KeptSegment> TakeSegments(uint64_t pool_bytes, uint64_t segment_bytes, uint64_t max_bytes);
  void OnReplaced(const PoolSegment& made, const std::string& made_name, const std::string& gone_name);
  // FAILED_PRECONDITION, with the names of the replicas, if `pool` is smaller than the kept one and has no
  // room for all kept replicas: Attach would release the others, and each may be the last copy. REQUIRES:
  // before Attach.
  absl::Status CheckTakesAll(const HostPool& pool) const;
  // Adopts the kept replicas that lie in `pool`, and lets the keeper release everything else. `pool` must
  // outlive the notifications.
  void Attach(HostPool* pool);
  std::vector<KeptReplica> TakeReplicas();
  // `next` gets all notifications too. Both must outlive the engine's notifications.
  void SetNext(ReplicaListener* next) { next_ = next; }
  void SetEngine(StoreEngine* engine);
  // Has the contract of OnKeptSettled.
  void OnSettled(const std::string& artifact_id, std::unique_ptr<ReplicaLease> lease);
  // Records that a process is attached to this replica in host memory, until the returned object is
  // destroyed. If this daemon ends first, the record stays for the next daemon. Ends the lease that was kept
  // for this process's attachment to the previous daemon.
  std::shared_ptr<void> NoteHolder(pid_t pid, UniqueFd process, const ReplicaHandles& handles);
  // Checks the keeper, and drops processes that ended. Call this periodically.
  void Mend();
  // Leaves everything with the keeper, because this daemon ends. Leases end.
  void Stop();

  v1::KeptPool status() const;

  void OnReplicaChanged(const ReplicaInfo& replica, const std::shared_ptr<const Manifest>& manifest) override;
  void OnTransferEnded(const TransferReport& report) override;

 private:
  struct Found {
    KeptRecord record;
    std::shared_ptr<const Manifest> manifest;
  };
  // The kept replicas that lie, at least in part, in segments which the pool did not take.
  std::vector<const Found*> FindWithoutRoom(const HostPool& pool) const;

  // The processes that were attached to one artifact in the previous daemon, and the lease that keeps the
  // replica in place for them; the lease is null until the replica is verified.
  struct Held {
    std::vector<Attachment> holders;
    std::unique_ptr<ReplicaLease> lease;
  };

  KeptPool(const std::string& socket, std::vector<std::string> argv)
      : keeper_(socket, std::move(argv)), unserved_(&keeper_) {}
  void Add(KeptDescriptor kept);
  void AddReplica(std::string_view artifact_id, int record_file);
  std::vector<KeptSegment> TakeRoom(uint64_t segment_bytes, uint64_t max_bytes);
  void AttachHolders(std::set<std::string>& stay);
  void Record(const ReplicaInfo& replica, const Manifest& manifest);
  void RecordOnGpu(const ReplicaInfo& replica);
  // Drops the holders for which `goes` is true, and then the leases of artifacts that have no holder left.
  void DropHolders(absl::FunctionRef<bool(const Attachment& holder)> goes);

  KeeperClient keeper_;
  UnservedSegments unserved_;
  // Used at the start.
  std::vector<std::string> names_;
  std::vector<KeptSegment> segments_;
  std::vector<Found> found_;
  uint64_t previous_bytes_ = 0;  // size of the kept pool; 0: not known
  std::vector<KeptReplica> replicas_;
  std::vector<Attachment> holders_;
  absl::flat_hash_map<std::string, uint64_t> outside_;  // mapped segments outside the pool -> bytes

  std::vector<std::string> room_;  // names of new segments that reserve room

  HostPool* pool_ = nullptr;
  ReplicaListener* next_ = nullptr;
  mutable absl::Mutex mutex_;
  v1::KeptPool status_ ABSL_GUARDED_BY(mutex_);  // status() sets the remaining fields
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<std::string, Held> held_ ABSL_GUARDED_BY(mutex_);  // by artifact
  StoreEngine* engine_ ABSL_GUARDED_BY(mutex_) = nullptr;                // null: nothing is recorded
  absl::flat_hash_map<std::string, std::string> recorded_ ABSL_GUARDED_BY(mutex_);  // artifact id -> replica
                                                                                    // id
};

}  // namespace tensorcast::daemon
