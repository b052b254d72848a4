#include "core/replicas/replica_retirement.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast {
namespace {

// No event of this node tells that the guard would now answer otherwise.
constexpr absl::Duration kAskGuardAgain = absl::Seconds(2);
constexpr absl::Duration kAskGuardSoon = absl::Milliseconds(250);
// What made the replica, or records it, may hold it for a moment more.
constexpr absl::Duration kHandover = absl::Seconds(1);

}  // namespace

// One attempt, with the cheap checks first. What it reads of the replica is a copy; Retire of the table
// checks all of it again under its mutex, after the consent.
absl::StatusOr<RetiredReplica> ReplicaRetirement::Try(const RetirementRequest& request, bool handing_over,
                                                      Refusal& refusal) const {
  const std::string what = absl::StrCat("write over ", request.artifact_id);
  const std::string_view in_new_memory =
      request.gate != nullptr ? "get the new version again without live" : "get without advance";
  const std::vector<ReplicaInfo> replicas = table_->FindArtifact(request.artifact_id);
  const auto replica = std::ranges::find_if(replicas, [&](const ReplicaInfo& info) {
    return info.location == request.location && info.state == ReplicaState::kReady &&
           (request.replica_id.empty() || info.id == request.replica_id);
  });
  if (replica == replicas.end()) {
    const std::string none = request.replica_id.empty()
                                 ? "no replica of this earlier version is"
                                 : absl::StrCat("replica ", request.replica_id, " is no longer");
    refusal = {.why = absl::NotFoundError(absl::StrCat(what, ": ", none, " ready at location ",
                                                       request.location.ToString(), "; ", in_new_memory))};
    return refusal.why;
  }
  if (replica->pinned) {
    refusal = {.why = absl::FailedPreconditionError(
                   absl::StrCat(what, ": replica ", replica->id, " is pinned; unpin the replica first"))};
    return refusal.why;
  }
  const uint32_t let_go = request.gate != nullptr ? request.gate->Close() : 0;
  // Unless it was retired the holders may change their minds.
  absl::Cleanup reopen = [&] {
    if (request.gate != nullptr) request.gate->Reopen(refusal.why);
  };
  if (replica->leases > let_go) {
    const std::string held = absl::StrCat("replica ", replica->id, " is held by ", replica->leases,
                                          replica->leases == 1 ? " lease" : " leases");
    refusal = {.why = absl::FailedPreconditionError(absl::StrCat(
                   what, ": ", held,
                   request.gate != nullptr ? "; commit in all holders of the replica, or detach the holders"
                                           : "; detach the readers, wait for the readers (--wait, "
                                             "wait_for_space), or get without advance")),
               .waits_for = request.gate != nullptr
                                ? absl::StrCat("all holders of replica ", replica->id, " to commit")
                                : absl::StrCat("the end of the leases: ", held),
               .passes = handing_over};
    return refusal.why;
  }
  // Asked last, and with no lock held. A lease that came meanwhile wins: the consent is then withdrawn by the
  // guard's owner, and asked for anew.
  absl::Status consent = guard_ != nullptr ? guard_->MayEvict(*replica) : absl::OkStatus();
  if (absl::IsAborted(consent)) {
    refusal = {.why = absl::FailedPreconditionError(absl::StrCat(what, ": replica ", replica->id,
                                                                 " must stay for now, and the get waits for ",
                                                                 consent.message(), "; ", in_new_memory)),
               .waits_for = std::string(consent.message()),
               .passes = true,
               .look_again = kAskGuardSoon};
    return refusal.why;
  }
  if (!consent.ok()) {
    const std::string text = absl::StrCat(what, ": replica ", replica->id, " must stay");
    refusal = {.why = absl::IsUnavailable(consent)
                          ? Annotate(consent, text)
                          : absl::FailedPreconditionError(absl::StrCat(
                                text, ": ", consent.message(), "; to keep both versions, ", in_new_memory)),
               .waits_for = std::string(consent.message()),
               .look_again = kAskGuardAgain};
    return refusal.why;
  }
  absl::StatusOr<RetiredReplica> retired = table_->Retire(replica->id, let_go);
  if (retired.ok()) {
    std::move(reopen).Cancel();
  } else {
    // A lease or a pin came while the guard was asked.
    refusal = {.why = Annotate(retired.status(), what),
               .waits_for = "a lease that began meanwhile",
               .passes = true,
               .look_again = kAskGuardSoon};
  }
  return retired;
}

// Until then a record of it stays for the next daemon. A call that looks at a live lease holds it for a
// moment.
void ReplicaRetirement::AwaitGone(const std::string& replica_id) const {
  while (true) {
    const uint64_t seen = table_->space().events();
    if (!table_->Find(replica_id).ok()) return;
    table_->space().AwaitEvent(seen, RequestContext());
  }
}

// Attempts until one succeeds, a refusal is final, or the context ends. `refusal` keeps the reason of the
// last attempt, for the error of a deadline. After success the order is: the live leases end, the replica is
// gone, and the listeners have heard of it; only then may the caller write.
absl::StatusOr<RetiredReplica> ReplicaRetirement::Retire(const RetirementRequest& request) const {
  const SteadyTime handover_ends = SteadyNow() + kHandover;
  Refusal refusal;
  while (true) {
    // Before the attempt, so that what changes after it ends the wait below at once.
    const uint64_t seen = table_->space().events();
    RequestContext context = request.context();
    const std::string what = absl::StrCat("write over ", request.artifact_id);
    if (const absl::Status ended = context.Check(what); !ended.ok()) {
      if (refusal.why.ok()) return ended;
      // The refusal names the operation already.
      const std::string_view end = ended.message().substr(what.size() + 2);
      return absl::Status(ended.code(), absl::StrCat(refusal.why.message(), " (", end, ")"));
    }
    const bool handing_over = SteadyNow() < handover_ends;
    absl::StatusOr<RetiredReplica> retired = Try(request, handing_over, refusal);
    if (retired.ok()) {
      if (request.gate != nullptr) {
        request.gate->EndLeases();
        AwaitGone(retired->replica_id);
      }
      notifier_->Flush();
      LOG(INFO) << "replica " << retired->replica_id << " of " << request.artifact_id
                << " gave its memory to a later version";
      return retired;
    }
    const bool ends_by_itself = refusal.passes;
    if (refusal.waits_for.empty() || (!request.wait && !ends_by_itself)) return retired;
    context.deadline = std::min(context.deadline, SteadyNow() + refusal.look_again);
    if (!request.wait && handing_over) context.deadline = std::min(context.deadline, handover_ends);
    if (request.on_wait != nullptr) request.on_wait(refusal.waits_for);
    table_->space().AwaitEvent(seen, context);
    if (request.on_wait != nullptr) request.on_wait("");
  }
}

}  // namespace tensorcast
