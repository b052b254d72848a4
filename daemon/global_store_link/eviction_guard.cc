#include "daemon/global_store_link/eviction_guard.h"

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "otel/api/span.h"

namespace tensorcast::daemon {

absl::Status ClusterEvictionGuard::MayEvict(const ReplicaInfo& replica) {
  // First, since its error (a packed file that is listed but is no copy) keeps the replica, whatever the
  // global store would say.
  TC_ASSIGN_OR_RETURN(const bool durable, durable_here_(replica));
  v1::RequestEvictionRequest request;
  *request.mutable_node() = link_->identity();
  request.set_replica_id(replica.id);
  RequestContext call = RequestContext::Background(timeout_);
  if (const TraceContext& cause = otel::CurrentContext(); cause.IsValid()) {
    call.trace = cause;  // of the eviction, or of the request for it
  }
  const absl::StatusOr<v1::RequestEvictionResponse> decision = client_->RequestEviction(call, request);
  if (decision.ok() && decision->granted()) {
    absl::MutexLock lock(&mutex_);
    // The global store does not offer the replica any more from its consent on. Remembered, to be taken back
    // where the eviction does not come about after all (somebody leased it).
    granted_[replica.id] = SteadyNow();
    return absl::OkStatus();
  }
  if (decision.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("the global store keeps it: ", decision->reason()));
  }
  // Not asked: the file on this node is a copy that needs no consent. A refusal, above, is not overruled.
  if (durable) {
    VLOG(1) << "Evicting " << replica.id
            << " without the global store's consent: a packed file holds the same bytes";
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("whether another copy exists could not be asked: ", decision.status().message()));
}

void ClusterEvictionGuard::WithdrawUnused(const std::vector<ReplicaInfo>& replicas,
                                          absl::Duration unused_for) {
  std::vector<std::string> unused;
  {
    absl::MutexLock lock(&mutex_);
    std::map<std::string, SteadyTime> open;
    for (const ReplicaInfo& replica : replicas) {
      const auto granted = granted_.find(replica.id);
      if (granted == granted_.end()) continue;
      if (replica.state == ReplicaState::kReady && SteadyNow() - granted->second >= unused_for) {
        unused.push_back(replica.id);
      } else {
        open.insert(*granted);
      }
    }
    granted_ = std::move(open);  // the rest is gone
  }
  for (const std::string& replica_id : unused) {
    v1::RequestEvictionRequest request;
    *request.mutable_node() = link_->identity();
    request.set_replica_id(replica_id);
    request.set_withdraw(true);
    const absl::Status status =
        client_->RequestEviction(RequestContext::Background(timeout_), request).status();
    LOG_IF(WARNING, !status.ok()) << "Replica " << replica_id
                                  << " stays, but is no longer offered to others: " << status;
  }
}

}  // namespace tensorcast::daemon
