#include "daemon/sources/held_grants.h"

#include <algorithm>

#include "absl/base/thread_annotations.h"
#include "absl/log/check.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "otel/api/span.h"
#include "rpc/convert/convert.h"

namespace tensorcast::daemon {
namespace {

constexpr absl::Duration kEndingTimeout = absl::Seconds(5);
// Of a call to a peer that did not answer one before.
constexpr absl::Duration kClosingSilent = absl::Seconds(1);

// An opening that has not answered for so long, and for so many times what another took, is overtaken.
constexpr absl::Duration kOvertakenAfter = absl::Milliseconds(250);
constexpr int kOvertakenAfterTimes = 8;

v1::TransportOutcome OutcomeOf(const absl::Status& status) {
  if (status.ok()) return v1::TRANSPORT_OUTCOME_SUCCEEDED;
  return absl::IsCancelled(status) ? v1::TRANSPORT_OUTCOME_CANCELLED : v1::TRANSPORT_OUTCOME_FAILED;
}

// The global store first: it is to offer less of a peer that hangs from now on.
// Runs on the background thread, once for each grant, without a retry: where the global store cannot be told,
// the grant expires there, and its pull ends with it at the source.
void TellEnd(const HeldGrants::Parts& parts, const HeldGrant& held, const GrantShare& share,
             const absl::Status& status, bool corrupt, bool silent, const TraceContext& trace) {
  const v1::TransportGrant& grant = held.grant;
  const auto call = [&trace](absl::Duration timeout) {
    RequestContext context = RequestContext::Background(timeout);
    context.trace = trace;
    return context;
  };
  v1::CompleteReplicaTransportRequest complete;
  *complete.mutable_node() = parts.link->identity();
  complete.set_grant_id(grant.grant_id());
  complete.set_outcome(OutcomeOf(status));
  if (!status.ok()) *complete.mutable_error() = rpc::ToProto(status);
  complete.set_source_corrupt(corrupt);
  complete.set_bytes(share.bytes);
  complete.set_transfer_id(share.transfer_id);
  LOG_IF(WARNING, absl::IsDeadlineExceeded(status))
      << "fetch from " << grant.source().name() << " under grant " << grant.grant_id() << ": " << status
      << "; for a while this node asks other sources first";
  const absl::Status told = parts.global_store->CompleteReplicaTransport(call(kEndingTimeout), complete);
  LOG_IF(WARNING, !told.ok()) << "tell the global store that grant " << grant.grant_id() << " ended: " << told
                              << "; the grant expires";
  if (!held.pull_opened) return;
  v1::ClosePullRequest close;
  close.set_grant_id(grant.grant_id());
  if (complete.has_error()) *close.mutable_error() = complete.error();
  // A source that cannot be told ends it with the grant.
  const absl::StatusOr<v1::ClosePullResponse> closed =
      parts.peers->ClosePull(call(silent ? kClosingSilent : kEndingTimeout),
                             PeerAddress(grant.source().grpc_address(), grant.source().name()), close);
  // A source that had ended the pull by itself and forgotten it answers with 0.
  if (closed.ok() && held.pulled != nullptr && closed->bytes_served() > 0) {
    parts.conservation->ComparePull(grant.grant_id(), grant.source().name(), *held.pulled,
                                    closed->bytes_served());
  }
}

}  // namespace

std::optional<GrantShare> FindShare(const std::vector<TransferReport>& transfers, std::string_view grant_id) {
  for (const TransferReport& transfer : transfers) {
    for (const SourceReport& source : transfer.sources) {
      if (source.source.grant_id != grant_id) continue;
      return GrantShare{.transfer_id = transfer.transfer_id, .bytes = source.bytes};
    }
  }
  return std::nullopt;
}

// Told from other threads that an opening is over, or that nothing is to be waited for any more.
class HeldGrants::Signal {
 public:
  // A notification stays until the next Await, so that none between two waits is missed.
  void Notify() {
    absl::MutexLock lock(&mutex_);
    notified_ = true;
  }
  void Await(SteadyTime until) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&notified_), TimeLeft(until));
    notified_ = false;
  }

 private:
  absl::Mutex mutex_;
  bool notified_ ABSL_GUARDED_BY(mutex_) = false;
};

// The states of a grant here: offered (Add), being opened (Open), in use (TakeOpened, with a source); from
// each of them End takes it out. What comes after End happens in the background.
HeldGrants::HeldGrants(Parts parts, std::shared_ptr<const Manifest> manifest, std::string lane)
    : parts_(std::move(parts)),
      manifest_(std::move(manifest)),
      lane_(std::move(lane)),
      signal_(std::make_shared<Signal>()) {}

HeldGrants::~HeldGrants() { EndAll(absl::CancelledError("the transfer was given up")); }

std::string HeldGrants::Add(v1::TransportGrant grant) {
  std::string id = grant.grant_id();
  held_[id].grant = std::move(grant);
  return id;
}

bool HeldGrants::Holds(const std::string& replica_name) const {
  return std::ranges::any_of(held_,
                             [&](const auto& held) { return held.second.replica_name() == replica_name; });
}

bool HeldGrants::Rests(const std::string& grant_id) const {
  return parts_.overtaken->Rests(held_.at(grant_id).peer(), SteadyNow());
}

void HeldGrants::Open(const RequestContext& context, const std::string& grant_id) {
  HeldGrant& held = held_.at(grant_id);
  CHECK(held.offered()) << "grant " << grant_id << " was opened before";
  held.opening =
      std::make_shared<Opening>(Opening::Plan{.opener = parts_.opener,
                                              .context = context.Child(),
                                              .grant = held.grant,
                                              .manifest = manifest_,
                                              .lane = lane_,
                                              .revoked = parts_.running->Add(grant_id),
                                              .on_over = [signal = signal_] { signal->Notify(); }});
}

std::vector<std::string> HeldGrants::BeingOpened() const {
  std::vector<std::string> opening;
  for (const auto& [grant_id, held] : held_) {
    if (held.opening != nullptr) opening.push_back(grant_id);
  }
  return opening;
}

bool HeldGrants::IsAnyInUse() const {
  return std::ranges::any_of(held_, [](const auto& held) { return held.second.in_use; });
}

std::optional<uint64_t> HeldGrants::ChunksOfHostmates() const {
  if (!IsAnyInUse()) return std::nullopt;
  uint64_t chunks = 0;
  for (const auto& [grant_id, held] : held_) {
    if (!held.in_use) continue;
    if (!held.on_host || held.availability == nullptr || held.availability->complete()) return std::nullopt;
    chunks += held.availability->count();
  }
  return chunks;
}

void HeldGrants::AwaitOpening(const RequestContext& context, SteadyTime until) {
  const Cancellation::Registration cancelled =
      context.cancellation.OnCancel([signal = signal_] { signal->Notify(); });
  until = std::min(until, context.deadline);
  // What was notified before may have been seen to already.
  const auto over = [](const auto& held) {
    return held.second.opening != nullptr && held.second.opening->over();
  };
  while (IsOpening() && std::ranges::none_of(held_, over) && !context.cancellation.IsCancelled() &&
         SteadyNow() < until) {
    signal_->Await(until);
  }
}

// A grant with an opening that failed is offered again by its fields, so the caller has to end it now.
std::vector<GrantOpening> HeldGrants::TakeOpened() {
  std::vector<GrantOpening> taken;
  for (auto& [grant_id, held] : held_) {
    if (held.opening == nullptr || !held.opening->over()) continue;
    const std::shared_ptr<Opening> opening = std::exchange(held.opening, nullptr);
    GrantOpening opened = opening->Take();
    held.pull_opened = opened.pull_opened;
    held.pulled = opened.pulled;
    if (opened.source.ok()) {
      const v1::Node& node = held.grant.source();
      held.in_use = true;
      held.on_host = !node.host_id().empty() && node.host_id() == parts_.link->host_id();
      held.availability = (*opened.source)->availability();
      if (!first_opened_.has_value()) first_opened_ = {node.name(), opening->took()};
    }
    taken.push_back(std::move(opened));
  }
  return taken;
}

absl::Duration HeldGrants::OvertakenAfter() const {
  if (!first_opened_.has_value()) return kOvertakenAfter;
  return std::max(kOvertakenAfter, kOvertakenAfterTimes * first_opened_->second);
}

std::vector<std::string> HeldGrants::Overtaken() const {
  std::vector<std::string> overtaken;
  if (!IsAnyInUse()) return overtaken;
  const SteadyTime since = SteadyNow() - OvertakenAfter();
  for (const auto& [grant_id, held] : held_) {
    if (held.opening != nullptr && held.opening->since() < since) overtaken.push_back(grant_id);
  }
  return overtaken;
}

absl::Status HeldGrants::OvertakenStatus() const {
  const std::string by = first_opened_.has_value() ? first_opened_->first : "another source";
  return absl::DeadlineExceededError(
      absl::StrCat("the source was overtaken: ", by, " answered earlier; no action is needed"));
}

// `held_` loses the grant at once, so no second End finds it. A stalled peer delays only the background
// thread.
void HeldGrants::End(const std::string& grant_id, absl::Status status, bool corrupt) {
  auto node = held_.extract(grant_id);
  if (node.empty()) return;
  HeldGrant& held = node.mapped();
  parts_.running->Remove(grant_id);
  if (absl::IsDeadlineExceeded(status)) parts_.overtaken->NoteOvertaken(held.peer(), SteadyNow());
  if (held.opening != nullptr && !status.ok()) held.opening->Cancel();
  GrantShare share = ShareOf(grant_id, held);
  // The calls run in the background, since they may wait for a peer that hangs. The task has all that it
  // needs: this object may go before it.
  parts_.background->Post([parts = parts_, held = std::move(held), share = std::move(share),
                           status = std::move(status), corrupt, after = OvertakenAfter(),
                           late = OvertakenStatus(), trace = trace_]() mutable {
    const otel::Scope scope(trace);
    const bool unopened = held.opening != nullptr;
    if (unopened) {
      // The transfer succeeded meanwhile. The opening gets the rest of its time, so that it is known whether
      // it was overtaken.
      if (status.ok()) {
        const bool over = held.opening->AwaitEnd(held.opening->since() + after);
        status = over ? absl::CancelledError("the transfer ended before this source was opened") : late;
        if (!over) parts.overtaken->NoteOvertaken(held.peer(), SteadyNow());
      }
      // The opening's thread has to end first: only then is it known whether there is a pull to close.
      held.opening->Cancel();
      held.opening->AwaitEnd(SteadyTime::InfiniteFuture());
      held.pull_opened = held.opening->Take().pull_opened;  // its source, if any, is closed by this
      held.opening.reset();
    }
    const bool silent = unopened || absl::IsDeadlineExceeded(status);
    TellEnd(parts, held, share, status, corrupt, silent, trace);
  });
}

GrantShare HeldGrants::ShareOf(const std::string& grant_id, const HeldGrant& held) const {
  if (held.in_use && parts_.find_share != nullptr && *parts_.find_share != nullptr) {
    if (std::optional<GrantShare> share = (*parts_.find_share)(grant_id)) return *std::move(share);
  }
  return {.transfer_id = "", .bytes = held.pulled == nullptr ? 0 : held.pulled->arrived.load()};
}

void HeldGrants::EndUnused(const absl::Status& status) {
  std::vector<std::string> unused;
  for (const auto& [grant_id, held] : held_) {
    if (!held.in_use) unused.push_back(grant_id);
  }
  for (const std::string& grant_id : unused) End(grant_id, status);
}

void HeldGrants::EndAll(const absl::Status& status) {
  // The deadline that passed is the transfer's, and no source was overtaken.
  const bool late = absl::IsDeadlineExceeded(status);
  const absl::Status end = late ? absl::CancelledError("the deadline of the transfer passed") : status;
  while (!held_.empty()) {
    const auto& [grant_id, held] = *held_.begin();
    if (end.ok() && held.in_use) parts_.overtaken->NoteServed(held.peer());
    End(std::string(grant_id), end);
  }
}

}  // namespace tensorcast::daemon
