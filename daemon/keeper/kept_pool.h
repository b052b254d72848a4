// The host pool beyond the life of its daemon. A keeper holds its segments, a record of each ready replica
// in them, and the processes attached to those. At the start what an earlier daemon left is taken back.
//
// A replica to which a process of then is still attached is leased until that process is gone, or was given a
// lease of its own: its memory is not given away while it is read.
//
// In this order: Open, TakeSegments, OnReplaced as the pool's, Attach with that pool, SetEngine, TakeReplicas
// for the engine; from then on it is the engine's listener, and passes on what it hears. Thread-safe.
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

  // Of the segments that were kept, where that is one for a pool of so many bytes.
  uint64_t SegmentBytes(uint64_t pool_bytes, uint64_t otherwise) const;
  // Those that processes map or replicas are in, of at most so many bytes: whole replicas, those that add
  // least first. With them room for what processes map that fits nowhere in that pool.
  std::vector<KeptSegment> TakeSegments(uint64_t pool_bytes, uint64_t segment_bytes, uint64_t max_bytes);
  void OnReplaced(const PoolSegment& made, const std::string& made_name, const std::string& gone_name);
  // FAILED_PRECONDITION, with their names, where `pool` is smaller than the kept one was and has no place for
  // all kept replicas: Attach would let them go, and each may be the last copy. REQUIRES: before Attach.
  absl::Status CheckTakesAll(const HostPool& pool) const;
  // What is not in this pool any more is let go. `pool` must outlive the listening.
  void Attach(HostPool* pool);
  std::vector<KeptReplica> TakeReplicas();
  // `next` is told of everything, too. Both must outlive the engine's notifications.
  void SetNext(ReplicaListener* next) { next_ = next; }
  void SetEngine(StoreEngine* engine);
  // As OnKeptSettled.
  void OnSettled(const std::string& artifact_id, std::unique_ptr<ReplicaLease> lease);
  // A process is attached to this replica in host memory for as long as what this returns lives, or this
  // daemon. It needs no lease on the artifact from before any more.
  std::shared_ptr<void> NoteHolder(pid_t pid, UniqueFd process, const ReplicaHandles& handles);
  // Looks after the keeper, and for processes that are gone. To be called now and then.
  void Mend();
  // What is kept now stays with the keeper: this daemon ends. Leases end.
  void Stop();

  v1::KeptPool status() const;

  void OnReplicaChanged(const ReplicaInfo& replica, const std::shared_ptr<const Manifest>& manifest) override;
  void OnTransferEnded(const TransferReport& report) override;

 private:
  struct Found {
    KeptRecord record;
    std::shared_ptr<const Manifest> manifest;
  };
  // Those of the start that lie, at least in part, in segments which the pool did not take.
  std::vector<const Found*> FindWithoutRoom(const HostPool& pool) const;

  // The processes that were attached to one artifact before, and what they keep in place; null until it is
  // verified.
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
  // Lets go of those holders; and of what none is left of.
  void DropHolders(absl::FunctionRef<bool(const Attachment& holder)> goes);

  KeeperClient keeper_;
  UnservedSegments unserved_;
  // Of the start.
  std::vector<std::string> names_;
  std::vector<KeptSegment> segments_;
  std::vector<Found> found_;
  uint64_t previous_bytes_ = 0;  // of the pool that was kept; 0: not known
  std::vector<KeptReplica> replicas_;
  std::vector<Attachment> holders_;
  absl::flat_hash_map<std::string, uint64_t> outside_;  // segments that are mapped and not in the pool: bytes

  std::vector<std::string> room_;  // names of segments that are none

  HostPool* pool_ = nullptr;
  ReplicaListener* next_ = nullptr;
  mutable absl::Mutex mutex_;
  v1::KeptPool status_ ABSL_GUARDED_BY(mutex_);  // but for what status() adds
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<std::string, Held> held_ ABSL_GUARDED_BY(mutex_);  // by artifact
  StoreEngine* engine_ ABSL_GUARDED_BY(mutex_) = nullptr;                // null: nothing is recorded
  absl::flat_hash_map<std::string, std::string> recorded_ ABSL_GUARDED_BY(mutex_);  // artifact -> replica
};

}  // namespace tensorcast::daemon
