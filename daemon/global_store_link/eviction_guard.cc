#include "daemon/global_store_link/eviction_guard.h"

#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "base/upkeep.h"
#include "otel/api/span.h"

namespace tensorcast::daemon {
namespace {

constexpr int kComplaintSeconds = 60;

}  // namespace

absl::Status ClusterEvictionGuard::MayEvict(const ReplicaInfo& replica) {
  // First, since its error (a packed file that is listed but is not a copy) keeps the replica, whatever the
  // global store would say.
  TC_ASSIGN_OR_RETURN(const bool durable, durable_here_(replica));
  v1::RequestEvictionRequest request;
  *request.mutable_node() = link_->identity();
  request.set_replica_id(replica.id);
  RequestContext call = UpkeepContext(timeout_);
  if (const TraceContext& cause = otel::CurrentContext(); cause.IsValid()) {
    call.trace = cause;  // of the eviction, or of the request for it
  }
  absl::StatusOr<v1::RequestEvictionResponse> decision = client_->RequestEviction(call, request);
  if (absl::IsNotFound(decision.status()) || absl::IsAborted(decision.status())) {
    // The global store was restarted since the last heartbeat, and does not know this node, or what it holds.
    const absl::Status known = link_->CheckIn(call.deadline);
    decision = known.ok() ? client_->RequestEviction(call, request) : known;
  }
  const bool is_answer_lost =
      absl::IsDeadlineExceeded(decision.status()) || absl::IsCancelled(decision.status());
  if (is_answer_lost || (decision.ok() && decision->granted())) {
    absl::MutexLock lock(&mutex_);
    // The global store does not offer the replica any more from its consent on. Remembered, to be taken back
    // where the eviction does not come about after all: a client leased the replica, or the answer was lost.
    granted_[replica.id] = SteadyNow();
  }
  if (decision.ok() && decision->granted()) return absl::OkStatus();
  // ABORTED tells the engine to ask again soon (EvictionGuard).
  if (decision.ok() && !decision->waiting_for().empty()) return absl::AbortedError(decision->waiting_for());
  if (decision.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("the global store refused: ", decision->reason()));
  }
  // Not asked: the file on this node is a copy that needs no consent. A refusal, above, is not overruled.
  if (durable) {
    VLOG(1) << "Evicting " << replica.id
            << " without the global store's consent: a packed file holds the same bytes";
    return absl::OkStatus();
  }
  const std::string text =
      absl::StrCat("the global store did not say whether replica ", replica.id, " may be evicted");
  if (absl::IsUnavailable(decision.status())) return Annotate(decision.status(), text);
  return absl::UnavailableError(absl::StrCat(text, ": ", decision.status().message()));
}

void ClusterEvictionGuard::WithdrawUnused(const std::vector<ReplicaInfo>& replicas,
                                          absl::Duration unused_for) {
  std::vector<std::pair<std::string, SteadyTime>> unused;
  {
    absl::MutexLock lock(&mutex_);
    std::map<std::string, SteadyTime> open;
    for (const ReplicaInfo& replica : replicas) {
      const auto granted = granted_.find(replica.id);
      if (granted == granted_.end()) continue;
      open.insert(*granted);
      if (replica.state == ReplicaState::kReady && SteadyNow() - granted->second >= unused_for) {
        unused.push_back(*granted);
      }
    }
    granted_ = std::move(open);  // the rest is gone
  }
  for (const auto& [replica_id, granted] : unused) {
    v1::RequestEvictionRequest request;
    *request.mutable_node() = link_->identity();
    request.set_replica_id(replica_id);
    request.set_withdraw(true);
    const absl::Status status = client_->RequestEviction(UpkeepContext(timeout_), request).status();
    // The consent is kept until the global store has heard of this: until then it leaves the replica out. It
    // would not hear of the others either, so that they wait for the next call too.
    if (!status.ok()) {
      LOG_EVERY_N_SEC(WARNING, kComplaintSeconds)
          << "tell the global store that " << unused.size() << " replicas, such as " << replica_id
          << ", are not evicted: " << status
          << "; other nodes cannot pull these replicas until the global store answers";
      return;
    }
    absl::MutexLock lock(&mutex_);
    // Unless another consent was given meanwhile, which may be in use.
    const auto current = granted_.find(replica_id);
    if (current != granted_.end() && current->second == granted) granted_.erase(current);
  }
}

}  // namespace tensorcast::daemon
