// Where the states of replicas move: the records under one mutex, the leases on them, and what follows for
// their memory.
//
//   allocating ─► filling ─► ready ─► draining ─► gone
//       │          │  │ ▲               ▲
//       └───Fail───┘  ▼ │               │
//          │       partial ─────────────┘
//          ▼
//        failed
//
// A replica drains when it is to go; no new leases are given then, and it is gone when the last one ends. A
// failed or gone replica leaves the records at that moment; of one that failed while it was leased the memory
// stays until its last lease ends.
//
// Memory is freed, and an availability is ended, without the mutex, by Finish: unmapping gigabytes takes
// long, and an availability calls its listeners. `space` says meanwhile that memory is coming.
//
// Thread-safe by `mutex`. The notifier's and that of `space` are the only ones taken under it.
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

  // What a move leaves to be done without the mutex.
  struct Rest {
    std::shared_ptr<Availability> availability;  // ends with `end`; null: none
    absl::Status end;
    std::optional<ReplicaStorage> storage;  // of `pool`: is freed
    Location pool;
  };
  void Finish(Rest rest) ABSL_LOCKS_EXCLUDED(mutex);
  // How the availability of a replica ends that is to go.
  static absl::Status BeingRemoved();

  void Insert(const ReplicaRecordPtr& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Move(ReplicaRecord& record, ReplicaState to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Notify(const ReplicaRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Touch(ReplicaRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // To draining, and on to gone where no lease holds the replica.
  Rest Drain(const ReplicaRecordPtr& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // To failed; its availability ends with `end`.
  Rest Fail(const ReplicaRecordPtr& record, absl::Status end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Null for null.
  std::unique_ptr<ReplicaLease> Lease(const ReplicaRecordPtr& record, bool to_serve = false)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // To the context's end at most. `condition` is asked under the mutex.
  void AwaitUnlessCancelled(const RequestContext& context, absl::FunctionRef<bool()> condition)
      ABSL_LOCKS_EXCLUDED(mutex);

  mutable absl::Mutex mutex;
  ReplicaIndex records ABSL_GUARDED_BY(mutex);
  std::set<ReplicaRecordPtr> failed ABSL_GUARDED_BY(mutex);  // and leased: their memory is there yet
  PoolSpace space;

 private:
  friend class ReplicaLease;
  void EndLease(const ReplicaRecordPtr& record, bool to_serve) ABSL_LOCKS_EXCLUDED(mutex);
  std::shared_ptr<const HostAllocation> HostOf(const ReplicaRecord& record) const ABSL_LOCKS_EXCLUDED(mutex);
  ReplicaStorage TakeStorage(ReplicaRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  Notifier* const notifier_;
  uint64_t uses_ ABSL_GUARDED_BY(mutex) = 0;  // orders replicas where the clock does not
};

}  // namespace tensorcast
