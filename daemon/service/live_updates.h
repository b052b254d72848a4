// The holds of processes on live replicas, and the version that is staged for each replica.
//
//   hold: begins with a live lease ─► ends with the last reference to the lease (Forget)
//   update: entry in `updates` ─► staged, when its gate says so ─► ended, when its ingest ends or an error
//   stops it
//
// When the last hold of a replica ends, the version that is staged for the replica is given up. LiveReplicas,
// the leases and the ingests share this object, so this object may outlive LiveReplicas.
//
// Thread-safe: `mutex` guards the members. A caller must not hold `mutex` when it releases the last reference
// to a LiveLease, or destroys a Dropped.
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

// A version that is staged for a replica. LiveUpdates::mutex guards all members that are not constant. The
// call that sees an update's end removes the update from `updates`. The next call begins a new update.
struct LiveUpdate {
  LiveUpdate(std::string artifact, std::string replica)
      : artifact_id(std::move(artifact)), base_id(std::move(replica)) {}

  const std::string artifact_id;
  const std::string base_id;  // id of the replica
  std::shared_ptr<CommitGate> gate;
  std::shared_ptr<PendingReplica> pending;  // null before the ingest was begun
  bool staged = false;
  bool ended = false;  // the ingest has ended, or the update was given up for `error`
  absl::Status error;
  int calls = 0;  // number of calls that wait until the update is staged
};

using LiveUpdatePtr = std::shared_ptr<LiveUpdate>;

class LiveUpdates {
 public:
  struct Hold {
    std::weak_ptr<LiveLease> lease;
    std::string replica_id;
  };

  // The ingest of an update that was given up. REQUIRES: destroyed without the mutex held. The destructor
  // ends the ingest, also for other requests that share the ingest.
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
          "the processes that share the live replica gave up this version; get the version again"));
    }

   private:
    std::shared_ptr<PendingReplica> pending_;
  };

  // Waits until `over` is true, the context has ended, or `stopping` is set. Calls `over` with the mutex
  // held.
  void Await(const RequestContext& context, absl::FunctionRef<bool()> over) ABSL_LOCKS_EXCLUDED(mutex);
  // Ends an update with `why`, unless it has ended. The next call about the replica begins a new update.
  Dropped Remove(const LiveUpdatePtr& update, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Call Forget when a hold ended with its connection. After the last hold of a replica, gives up the
  // replica's staged version.
  void Forget(const std::string& name) ABSL_LOCKS_EXCLUDED(mutex);
  bool IsHeld(std::string_view replica_id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  absl::Mutex mutex;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  std::map<std::string, Hold> holds ABSL_GUARDED_BY(mutex);             // by their names
  std::map<std::string, LiveUpdatePtr> updates ABSL_GUARDED_BY(mutex);  // by the ids of the replicas
};

}  // namespace tensorcast::daemon
