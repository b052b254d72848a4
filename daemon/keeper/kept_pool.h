// Keeps the host pool beyond the life of its daemon. The keeper holds the pool's segments, a record of each
// ready replica, and a pidfd of each attached process. The next daemon takes them back.
//
// A replica to which a client of the previous daemon is attached stays leased. The lease ends when that
// client ends or gets a new lease.
//
// Call in this order: Open, the functions of `previous`, OnReplaced, Attach, SetEngine, TakeReplicas.
// Afterwards this object is the engine's listener. Thread-safe, except `previous`.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
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
#include "daemon/keeper/previous_pool.h"
#include "daemon/keeper/unserved_segments.h"
#include "proto/daemon.pb.h"

namespace tensorcast::daemon {

class KeptPool final : public ReplicaListener {
 public:
  // `argv` as for KeeperClient.
  static absl::StatusOr<std::unique_ptr<KeptPool>> Open(const std::string& socket,
                                                        std::vector<std::string> argv);

  // What the previous daemon left. Do not use it after Attach.
  PreviousPool& previous() { return previous_; }
  // Call this when the pool made the segment `made` to replace the kept segment `gone_name`. Swaps the two
  // segments in the keeper.
  void OnReplaced(const PoolSegment& made, const std::string& made_name, const std::string& gone_name);
  // Adopts the kept replicas that lie in `pool`. Lets the keeper release what neither `pool` nor an attached
  // process uses. `pool` must outlive the engine's notifications.
  void Attach(HostPool* pool);
  std::vector<KeptReplica> TakeReplicas();
  // `next` gets all notifications too. `next` and this object must outlive the engine's notifications.
  void SetNext(ReplicaListener* next) { next_ = next; }
  void SetEngine(StoreEngine* engine);
  // Has the contract of OnKeptSettled.
  void OnSettled(const std::string& artifact_id, std::unique_ptr<ReplicaLease> lease);
  // Records that a process is attached to this replica in host memory, until the returned object is
  // destroyed. If the daemon ends before that, the record stays for the next daemon. Ends the lease that this
  // object kept for the same process.
  std::shared_ptr<void> NoteHolder(pid_t pid, UniqueFd process, const ReplicaHandles& handles);
  // Checks the keeper, and drops processes that ended. Call Mend periodically.
  void Mend();
  // Call Stop before the daemon ends. Leaves everything with the keeper, and ends the leases of this object.
  void Stop();

  v1::KeptPool status() const;

  void OnReplicaChanged(const ReplicaInfo& replica, const std::shared_ptr<const Manifest>& manifest) override;
  void OnTransferEnded(const TransferReport& report) override;

 private:
  // The processes that the previous daemon attached to one artifact's replica, and the lease on that replica.
  // The lease is null until the replica is verified.
  struct Held {
    std::vector<Attachment> holders;
    std::unique_ptr<ReplicaLease> lease;
  };

  KeptPool(const std::string& socket, std::vector<std::string> argv)
      : keeper_(socket, std::move(argv)), unserved_(&keeper_) {}
  // Adds to `stay` the names of the descriptors that the keeper continues to hold.
  void AttachHolders(PreviousPool::Contents& previous, std::set<std::string>& stay);
  void Record(const ReplicaInfo& replica, const Manifest& manifest);
  void RecordOnGpu(const ReplicaInfo& replica);
  // Drops the holders for which `goes` is true, and then the leases of artifacts that have no holder left.
  void DropHolders(absl::FunctionRef<bool(const Attachment& holder)> goes);

  KeeperClient keeper_;
  UnservedSegments unserved_;
  PreviousPool previous_;              // used at the start
  std::vector<KeptReplica> replicas_;  // from Attach to TakeReplicas
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
