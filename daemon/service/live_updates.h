// The holds of processes on live replicas, and the version that is staged for each replica.
//
//   hold: begins with a live lease ─► ends with the last reference to the lease (Forget)
//   update: entry in `updates` ─► staged, when its gate says so ─► ended, with its ingest or with an error
//
// What is staged for a replica is given up when the replica's last hold ends. It is shared by LiveReplicas,
// the leases and the ingests, so it outlives its owner where a lease does.
//
// Thread-safe by `mutex`. The last reference to a LiveLease, and a Dropped, must go without it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "core/engine/engine.h"
#include "core/replicas/commit_gate.h"

namespace tensorcast::daemon {

// A version that is staged for a replica. All but the constants is guarded by LiveUpdates::mutex. An update
// begins with its entry in `updates`, is staged when its gate says so, and ends with its ingest, or with an
// error before that. The call that sees its end takes it out of `updates`, and the next one begins anew.
struct LiveUpdate {
  LiveUpdate(std::string artifact, std::string replica)
      : artifact_id(std::move(artifact)), base_id(std::move(replica)) {}

  const std::string artifact_id;
  const std::string base_id;  // of the replica
  std::shared_ptr<CommitGate> gate;
  std::shared_ptr<PendingReplica> pending;  // null before it was begun
  bool staged = false;
  bool ended = false;  // its ingest, or with `error` what should have begun that
  absl::Status error;
  int calls = 0;  // that wait until it is staged
};

using LiveUpdatePtr = std::shared_ptr<LiveUpdate>;

class LiveUpdates {
 public:
  struct Hold {
    std::weak_ptr<LiveLease> lease;
    std::string replica_id;
  };

  // The ingest of an update that was given up. To be destroyed without the mutex: that ends the ingest, also
  // for other requests that have joined it.
  class Dropped {
   public:
    explicit Dropped(std::shared_ptr<PendingReplica> pending = nullptr) : pending_(std::move(pending)) {}
    Dropped(Dropped&&) = default;
    Dropped& operator=(Dropped&& other) {
      pending_.swap(other.pending_);
      return *this;
    }
    ~Dropped() {
      if (pending_ == nullptr) return;
      pending_->Abandon(absl::AbortedError(
          "the processes that hold the replica live no longer want this version; get the version again"));
    }

   private:
    std::shared_ptr<PendingReplica> pending_;
  };

  // Until `over` holds, under the mutex, or the context has ended.
  void Await(const RequestContext& context, absl::FunctionRef<bool()> over) ABSL_LOCKS_EXCLUDED(mutex);
  // Ends an update with `why`, unless it has ended. The next call about the replica begins anew.
  Dropped Remove(const LiveUpdatePtr& update, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // A hold ended, with the connection that had it. What was staged for its replica goes with the last.
  void Forget(const std::string& name) ABSL_LOCKS_EXCLUDED(mutex);
  bool IsHeld(std::string_view replica_id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  absl::Mutex mutex;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  std::map<std::string, Hold> holds ABSL_GUARDED_BY(mutex);             // by their names
  std::map<std::string, LiveUpdatePtr> updates ABSL_GUARDED_BY(mutex);  // by the ids of the replicas
};

}  // namespace tensorcast::daemon
