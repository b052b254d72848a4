// Changes the states of replicas. Keeps their records under one mutex, gives leases on them, and frees their
// memory.
//
//   allocating ─► filling ─► ready ─► draining ─► gone
//       │          │  │ ▲               ▲
//       └───Fail───┘  ▼ │               │
//          │       partial ─────────────┘
//          ▼
//        failed
//
// A replica that is being removed drains: it gets no new leases, and is gone when its last lease ends. A
// failed or gone replica leaves the records at once. If a replica failed while it was leased, its memory
// stays until its last lease ends.
//
// Drain and Fail return a Rest, which the caller passes to Finish without the mutex. PoolSpace::IsFreeing is
// true for the pool until Finish has freed the memory.
//
// Thread-safe by `mutex`. Only the mutexes of the notifier and of `space` are taken under it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "core/memory/host_pool.h"
#include "core/replica/availability.h"
#include "core/replica/replica.h"
#include "core/replicas/notifier.h"
#include "core/replicas/pool_space.h"
#include "core/replicas/replica_index.h"
#include "core/replicas/replica_lease.h"
#include "core/replicas/replica_record.h"

namespace tensorcast {

class ReplicaStates {
 public:
  explicit ReplicaStates(Notifier* notifier) : notifier_(notifier) {}
  // REQUIRES: no lease is left.
  ~ReplicaStates();
  ReplicaStates(const ReplicaStates&) = delete;
  ReplicaStates& operator=(const ReplicaStates&) = delete;

  // The work that remains after a state change.
  struct Rest {
    std::shared_ptr<Availability> availability;  // ends with `end`; null: none
    absl::Status end;
    std::optional<ReplicaStorage> storage;  // memory of `pool` to free
    Location pool;
  };
  void Finish(Rest rest) ABSL_LOCKS_EXCLUDED(mutex);
  // The status with which the availability of a removed replica ends.
  static absl::Status BeingRemoved();

  void Insert(const ReplicaRecordPtr& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Move(ReplicaRecord& record, ReplicaState to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Notify(const ReplicaRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Touch(ReplicaRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Moves the replica to draining, and on to gone if no lease holds it.
  Rest Drain(const ReplicaRecordPtr& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Moves the replica to failed; its availability ends with `end`.
  Rest Fail(const ReplicaRecordPtr& record, absl::Status end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // A lease on the replica; null if `record` is null.
  std::unique_ptr<ReplicaLease> Lease(const ReplicaRecordPtr& record, bool to_serve = false)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Blocks until `condition`, which is called under the mutex, is true, or until the context ends.
  void AwaitUnlessCancelled(const RequestContext& context, absl::FunctionRef<bool()> condition)
      ABSL_LOCKS_EXCLUDED(mutex);

  mutable absl::Mutex mutex;
  ReplicaIndex records ABSL_GUARDED_BY(mutex);
  std::set<ReplicaRecordPtr> failed ABSL_GUARDED_BY(mutex);  // still leased, so they still have memory
  PoolSpace space;

 private:
  friend class ReplicaLease;
  void EndLease(const ReplicaRecordPtr& record, bool to_serve) ABSL_LOCKS_EXCLUDED(mutex);
  std::shared_ptr<const HostAllocation> HostOf(const ReplicaRecord& record) const ABSL_LOCKS_EXCLUDED(mutex);
  ReplicaStorage TakeStorage(ReplicaRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  Notifier* const notifier_;
  uint64_t uses_ ABSL_GUARDED_BY(mutex) = 0;  // the number of uses so far, for use_order
};

}  // namespace tensorcast
