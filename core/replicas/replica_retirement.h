// Takes a ready replica out of host memory without giving its memory back, so that a later version of its
// artifact can be written over it (core/ingest/advance.h).
//
// As for any eviction the guard must agree. It is asked as the last step, because its consent cannot be taken
// back once another node has relied on it. Nothing reads the memory afterwards: the replica has no lease, or
// only live leases of holders in the gate, and these end first. The listeners already know that the
// replica is gone (one of them keeps a record for the next daemon).
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
  std::string replica_id = {};  // only this one; empty: any
  bool wait = false;            // for leases to end and for the guard to agree, to the context's deadline
  // Gives the current context: a caller that joins an ingest may extend its deadline.
  std::function<RequestContext()> context;
  WaitObserver on_wait;  // may be null
  // The gate that holders of live leases enter; null: the replica has no live lease. The leases in the gate
  // have ended when the replica is retired.
  CommitGate* gate = nullptr;
};

class ReplicaRetirement {
 public:
  // All must outlive it; `guard` may be null.
  ReplicaRetirement(ReplicaTable* table, EvictionGuard* guard, Notifier* notifier)
      : table_(table), guard_(guard), notifier_(notifier) {}

  // NOT_FOUND when host memory has no ready replica of the artifact; FAILED_PRECONDITION, naming the replica,
  // when it is pinned or leased outside the gate, or when the guard refuses; UNAVAILABLE when the guard
  // cannot decide.
  absl::StatusOr<RetiredReplica> Retire(const RetirementRequest& request) const;

 private:
  // Why the replica was not retired, and when to try again.
  struct Refusal {
    absl::Status why;
    std::string waits_for = {};
    bool passes = false;                                   // by itself, also for a request that does not wait
    absl::Duration look_again = absl::InfiniteDuration();  // where no event tells that it has passed
  };
  absl::StatusOr<RetiredReplica> Try(const RetirementRequest& request, bool handing_over,
                                     Refusal& refusal) const;

  void AwaitGone(const std::string& replica_id) const;

  ReplicaTable* const table_;
  EvictionGuard* const guard_;
  Notifier* const notifier_;
};

}  // namespace tensorcast
