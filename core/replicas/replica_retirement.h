// Takes a ready replica out of the table and keeps its memory, so that an ingest can write a later version
// over it (core/ingest/advance.h). The memory is host memory or the memory of a GPU.
//
// The eviction guard must agree, and is asked last. After the retirement no lease is left on the replica, and
// the listener was told that the replica is gone.
//
// Thread-safe. Blocks on the guard, on the listener and, if requested, on the holders of the replica.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "core/replicas/callbacks.h"
#include "core/replicas/commit_gate.h"
#include "core/replicas/notifier.h"
#include "core/replicas/replica_table.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

struct RetirementRequest {
  std::string artifact_id;
  Location location;            // of the replica: host memory or a GPU
  std::string replica_id = {};  // the replica to retire; empty: any replica of the artifact
  bool wait = false;  // wait until leases end and the guard agrees, at most until the context's deadline
  // Returns the current context, because a caller that joins an ingest may extend its deadline.
  std::function<RequestContext()> context;
  WaitObserver on_wait;  // may be null
  // The gate that holders of live leases enter; null: the replica has no live lease. Retire ends the leases
  // in the gate.
  CommitGate* gate = nullptr;
};

class ReplicaRetirement {
 public:
  // All pointers must outlive this object; `guard` may be null.
  ReplicaRetirement(ReplicaTable* table, EvictionGuard* guard, Notifier* notifier)
      : table_(table), guard_(guard), notifier_(notifier) {}

  // NOT_FOUND if the location has no ready replica of the artifact. FAILED_PRECONDITION if the replica is
  // pinned, if it has a lease outside the gate, or if the guard refuses. UNAVAILABLE if the guard cannot
  // decide. CANCELLED or DEADLINE_EXCEEDED if the context ends first. Even without `wait`, Retire
  // waits up to a second for leases to end, and waits for an operation that the guard names (ABORTED).
  absl::StatusOr<RetiredReplica> Retire(const RetirementRequest& request) const;

 private:
  // Why the replica was not retired, and when to try again.
  struct Refusal {
    absl::Status why;
    std::string waits_for = {};
    bool passes = false;  // the cause in `why` ends soon, so every request waits
    absl::Duration look_again = absl::InfiniteDuration();  // try again after this time even without an event
  };
  absl::StatusOr<RetiredReplica> Try(const RetirementRequest& request, bool handing_over,
                                     Refusal& refusal) const;

  void AwaitGone(const std::string& replica_id) const;

  ReplicaTable* const table_;
  EvictionGuard* const guard_;
  Notifier* const notifier_;
};

}  // namespace tensorcast
