#include "daemon/sources/source_finder.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_join.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/engine/stall_watch.h"
#include "daemon/node/node_messages.h"
#include "daemon/sources/origin_files.h"
#include "otel/api/span.h"
#include "rpc/convert/convert.h"
#include "rpc/retry.h"

namespace tensorcast::daemon {
namespace {

constexpr absl::Duration kEndingTimeout = absl::Seconds(5);
constexpr absl::Duration kCheckInTimeout = absl::Seconds(5);

// A source that delivered nothing is asked again, after a pause that grows, and so many times in a row. One
// that is alive and gives no byte for the whole of its time may be busy with others: it is asked for longer.
constexpr int kTriesOfAFailing = 3;
constexpr int kTriesOfABusy = 20;
constexpr absl::Duration kFirstPause = absl::Milliseconds(250);
constexpr absl::Duration kLongestPause = absl::Seconds(2);

bool MayBeBusy(const absl::Status& failure) {
  return absl::IsDeadlineExceeded(failure) || absl::IsResourceExhausted(failure);
}

// How many grants a transfer wants at most; the global store may give fewer. More gain nothing, and each
// chunk then takes longer to come and be passed on.
constexpr size_t kMostSources = 6;
// Questions for more sources while there are some, so that the global store's work a transfer is bounded.
constexpr int kMostAskedBeside = 6;

// Of other hosts, where those of this one give nothing.
constexpr uint32_t kSourcesBesideHostmates = 4;

using Source = std::unique_ptr<ChunkSource>;

class ReplicaSourceProvider : public SourceProvider {
 public:
  ReplicaSourceProvider(const SourceFinder::Options& parts, SourceRequest request)
      : parts_(parts), request_(std::move(request)) {}

  // Never Finished: nobody wanted the ingest any more before it began, or the engine dropped it.
  ~ReplicaSourceProvider() override { EndAll(absl::CancelledError("the transfer was given up")); }

  void ObserveWaits(const WaitObserver& observer) override { observer_ = observer; }

  absl::StatusOr<MoreSources> Next(const RequestContext& context, std::span<const SourceFailure> ended,
                                   bool needed) override {
    trace_ = context.trace;
    for (const SourceFailure& failure : ended) NoteFailure(failure);
    if (!needed) return FindBeside(context, !ended.empty());
    absl::StatusOr<MoreSources> found = Find(context);
    ObserveWait("");
    return found;
  }

  std::vector<SourceFailure> TakeUnopened() override { return std::exchange(unopened_, {}); }

  void Finished(const absl::Status& status, std::span<const SourceFailure> ended) override {
    for (const SourceFailure& failure : ended) NoteFailure(failure);
    EndAll(status);
  }

 private:
  // What became of a replica elsewhere in this transfer.
  struct Tried {
    int fruitless = 0;  // tries in a row that gave nothing
    bool busy = false;  // perhaps, when it was tried last
    bool corrupt = false;
    bool given_up() const { return corrupt || fruitless >= (busy ? kTriesOfABusy : kTriesOfAFailing); }
  };
  // A grant from when it was given to its end.
  struct Held {
    v1::TransportGrant grant;
    bool pull_opened = false;  // at the source
    bool in_use = false;
    bool on_host = false;                              // of this one
    std::shared_ptr<const Availability> availability;  // null: it has everything
  };

  // No source is in use: waits until there is one.
  absl::StatusOr<MoreSources> Find(const RequestContext& context) {
    while (true) {
      TC_RETURN_IF_ERROR(context.Check("looking for a source"));
      if (offered_.empty()) {
        TC_ASSIGN_OR_RETURN(v1::RequestReplicaTransportResponse answer, AskForGrants(context, true));
        // Those that failed before are asked again only when this node has nothing itself.
        if (std::ranges::all_of(offered_, [this](const auto& id) { return WasTried(id); })) {
          if (std::optional<Source> source = TryOrigin()) {
            EndAll(absl::CancelledError("the files of the import are read instead"));
            return Only(*std::move(source));
          }
        }
        if (offered_.empty()) {
          waited_for_.assign(answer.waiting_for().begin(), answer.waiting_for().end());
          no_source_reason_ = answer.no_source_reason();
          if (!answer.has_retry_after() || request_.lane == kDiskLane) return NothingLeft();
          TC_RETURN_IF_ERROR(Wait(context, rpc::FromProto(answer.retry_after())));
          continue;
        }
      }
      TC_RETURN_IF_ERROR(PauseBefore(context, offered_.front()));
      if (std::optional<Source> source = OpenNext(context)) return With(*std::move(source));
    }
  }

  // Some are in use: what can be had now, without a wait.
  absl::StatusOr<MoreSources> FindBeside(const RequestContext& context, bool one_ended) {
    const SteadyTime now = SteadyNow();
    WatchHostmates(now);
    if (offered_.empty() && hostmates_.TakeStall(now)) {
      TC_RETURN_IF_ERROR(AskForGrants(context, false, /*stalled=*/true).status());
    } else if (offered_.empty()) {
      // Only the watch wanted to be asked.
      const bool early = hostmates_.LookIn() < absl::InfiniteDuration() && !one_ended && now < look_at_;
      if (early) return MoreSources{.sources = {}, .look_again = LookAgain(look_at_ - now)};
      const bool enough = !may_look_beside_ || held_.size() >= kMostSources;
      if (enough || asked_beside_ == kMostAskedBeside) {
        return MoreSources{.sources = {}, .look_again = hostmates_.LookIn()};
      }
      ++asked_beside_;
      TC_RETURN_IF_ERROR(AskForGrants(context, false).status());
    }
    while (!offered_.empty()) {
      TC_RETURN_IF_ERROR(context.Check("looking for another source"));
      if (std::optional<Source> source = OpenNext(context)) return With(*std::move(source));
    }
    return MoreSources{.sources = {}, .look_again = LookAgain(look_again_)};
  }

  // Where all sources in use are of this host and fill yet, what they do not bring has to come from
  // elsewhere.
  void WatchHostmates(SteadyTime now) {
    uint64_t chunks = 0;
    bool only_these = false;
    for (const auto& [grant_id, held] : held_) {
      if (!held.in_use) continue;
      only_these = held.on_host && held.availability != nullptr && !held.availability->complete();
      if (!only_these) break;
      chunks += held.availability->count();
    }
    if (only_these) {
      hostmates_.Note(chunks, now);
    } else {
      hostmates_.Reset();
    }
  }

  absl::Duration LookAgain(absl::Duration otherwise) const {
    return std::min(otherwise, hostmates_.LookIn());
  }

  // Nobody else is needed beside it: it is of this host, and as fast as memory or its disk.
  MoreSources Only(Source source) {
    may_look_beside_ = false;
    MoreSources more;
    more.sources.push_back(std::move(source));
    return more;
  }

  MoreSources With(Source source) {
    if (source->info().type != SourceType::kRemote && HasAll(*source)) {
      for (const std::string& id : std::exchange(offered_, {})) {
        EndGrant(id, absl::CancelledError("a replica on this host is read instead"), false);
      }
      return Only(std::move(source));
    }
    may_look_beside_ = true;  // also after one of this host that failed
    WatchHostmates(SteadyNow());
    MoreSources more{.sources = {},
                     .look_again = offered_.empty() ? LookAgain(look_again_) : absl::ZeroDuration()};
    more.sources.push_back(std::move(source));
    return more;
  }

  static bool HasAll(const ChunkSource& source) {
    const std::shared_ptr<const Availability> has = source.availability();
    return has == nullptr || has->complete();
  }

  bool IsHeld(const std::string& replica_id) const {
    return std::ranges::any_of(
        held_, [&](const auto& held) { return held.second.grant.replica().replica_id() == replica_id; });
  }

  bool WasTried(const std::string& grant_id) const {
    return replicas_.contains(held_.at(grant_id).grant.replica().replica_id());
  }

  // A source under the first grant that was offered and not opened yet; nullopt when it could not be.
  std::optional<Source> OpenNext(const RequestContext& context) {
    const std::string grant_id = offered_.front();
    offered_.pop_front();
    Held& held = held_.at(grant_id);
    const Cancellation revoked = parts_.grants->Add(grant_id);
    GrantOpening opening =
        parts_.opener->Open(context, held.grant, *request_.manifest, request_.lane, revoked);
    held.pull_opened = opening.pull_opened;
    for (SourceFailure& lane : opening.unopened) unopened_.push_back(std::move(lane));
    if (opening.source.ok()) {
      const v1::Node& node = held.grant.source();
      held.in_use = true;
      held.on_host = !node.host_id().empty() && node.host_id() == parts_.link->host_id();
      held.availability = (*opening.source)->availability();
      return *std::move(opening.source);
    }
    const absl::Status& status = opening.source.status();
    const std::string& name = held.grant.source().name();
    LOG(WARNING) << "Source " << name << " of " << request_.manifest->id()
                 << " could not be opened: " << status;
    NoteFruitless(held.grant.replica().replica_id(), status);
    NoteTried(name, status);
    EndGrant(grant_id, status, false);
    return std::nullopt;
  }

  // Before one that gave nothing when it was asked last is asked again.
  absl::Status PauseBefore(const RequestContext& context, const std::string& grant_id) {
    const v1::TransportGrant& grant = held_.at(grant_id).grant;
    const auto tried = replicas_.find(grant.replica().replica_id());
    const int fruitless = tried == replicas_.end() ? 0 : tried->second.fruitless;
    if (fruitless == 0) return absl::OkStatus();
    const std::string& name = grant.source().name();
    ObserveWait(absl::StrCat(name, ", which gave nothing"));
    const absl::Duration pause = std::min(kFirstPause * std::exp2(fruitless - 1), kLongestPause);
    const absl::Status paused =
        rpc::SleepFor(context, pause, absl::StrCat("asking ", name, ", which gave nothing, again"));
    if (!paused.ok()) EndAll(paused);
    return paused;
  }

  absl::Status Wait(const RequestContext& context, absl::Duration duration) {
    waited_in_vain_ = waited_for_;
    const std::string what = absl::StrJoin(waited_for_, ", ");
    ObserveWait(what);
    return rpc::SleepFor(context, std::min(duration, std::max(kFirstPause, TimeLeft(context.deadline) / 2)),
                         absl::StrCat("waiting for a source of ", request_.manifest->id(), ": ", what));
  }

  void ObserveWait(const std::string& what) {
    if (observer_) observer_(what);
  }

  // NOT_FOUND: the artifact was deleted, or never published. Nothing is in the answer while the global store
  // gives none.
  // What is granted is held and offered from then on. `again`: also those that gave nothing before.
  // `stalled`: those in use give nothing.
  absl::StatusOr<v1::RequestReplicaTransportResponse> AskForGrants(const RequestContext& context, bool again,
                                                                   bool stalled = false) {
    v1::RequestReplicaTransportRequest request;
    *request.mutable_node() = parts_.link->identity();
    request.set_artifact_id(request_.manifest->id());
    *request.mutable_destination() = ToProto(request_.destination, parts_.devices);
    for (const auto& [replica_id, tried] : replicas_) {
      // One that is held again is slow only where it gives nothing now.
      if (IsHeld(replica_id)) continue;
      const bool excluded = tried.given_up() || (!again && tried.fruitless > 0);
      (excluded ? request.add_excluded_replicas() : request.add_slow_replicas())->assign(replica_id);
      if (tried.corrupt) request.add_corrupt_replicas(replica_id);
    }
    if (context.deadline != SteadyTime::InfiniteFuture()) {
      *request.mutable_timeout() = rpc::ToProto(TimeLeft(context.deadline));
    }
    request.set_required_lane(request_.lane);
    request.set_sources(static_cast<uint32_t>(kMostSources - std::min(held_.size(), kMostSources)));
    for (const auto& [grant_id, held] : held_) {
      request.add_held_grants(grant_id);
      if (stalled) request.add_slow_replicas(held.grant.replica().replica_id());
    }
    if (stalled) request.set_sources(std::max(request.sources(), kSourcesBesideHostmates));
    absl::StatusOr<v1::RequestReplicaTransportResponse> answer = Request(context, request);
    if (absl::IsNotFound(answer.status()) || absl::IsAborted(answer.status())) {
      // The artifact is unknown, or this node is: the global store may have been restarted since the last
      // heartbeat.
      const absl::Status known =
          parts_.link->CheckIn(std::min(context.deadline, SteadyNow() + kCheckInTimeout));
      answer = known.ok() ? Request(context, request) : known;
    }
    if (answer.ok()) {
      origin_ = OwnOrigin(*answer);
      for (v1::TransportGrant& grant : *answer->mutable_grants()) {
        const std::string id = grant.grant_id();
        held_[id].grant = std::move(grant);
        offered_.push_back(id);
      }
      look_again_ =
          answer->has_look_again() ? rpc::FromProto(answer->look_again()) : absl::InfiniteDuration();
      look_at_ = SteadyNow() + look_again_;
      return answer;
    }
    TC_RETURN_IF_ERROR(context.Check("looking for a source"));
    if (absl::IsNotFound(answer.status())) return answer;
    // Without the global store what this node has itself is still there to be read.
    NoteTried("global store", answer.status());
    global_store_failed_ = true;
    return v1::RequestReplicaTransportResponse();
  }

  // Each grant is a mutation of its own, though all are asked for on behalf of one request.
  absl::StatusOr<v1::RequestReplicaTransportResponse> Request(
      const RequestContext& context, const v1::RequestReplicaTransportRequest& request) {
    RequestContext call = context.Child();
    call.request_id = NewUuid();
    return parts_.global_store->RequestReplicaTransport(call, request);
  }

  // The files of the import on this node, once.
  std::optional<Source> TryOrigin() {
    const bool wanted = request_.lane.empty() || request_.lane == kDiskLane;
    if (!wanted || !origin_.has_value() || std::exchange(origin_tried_, true)) return std::nullopt;
    absl::StatusOr<Source> source = OpenOriginSource(*parts_.import_roots, *origin_, *request_.manifest);
    if (source.ok()) return *std::move(source);
    NoteTried("origin", source.status());
    NoteOriginFailure(source.status());
    unopened_.push_back(
        {.source = {SourceType::kDisk, std::string(kDiskLane), "origin"}, .status = source.status()});
    return std::nullopt;
  }

  std::optional<v1::Origin> OwnOrigin(const v1::RequestReplicaTransportResponse& answer) const {
    const auto own = std::ranges::find(answer.origins(), parts_.link->node_id(), &v1::Origin::node_id);
    return own == answer.origins().end() ? std::nullopt : std::optional<v1::Origin>(*own);
  }

  void NoteFailure(const SourceFailure& failure) {
    NoteTried(absl::StrCat(failure.source.name, " (", failure.source.lane, ")"), failure.status);
    corrupt_ |= failure.corrupt;
    const auto held = held_.find(failure.source.grant_id);
    if (held == held_.end()) return NoteOriginFailure(failure.status);
    const std::string replica_id = held->second.grant.replica().replica_id();
    Tried& replica = replicas_[replica_id];
    if (failure.delivered > 0) replica.fruitless = 0;
    replica.corrupt = failure.corrupt;
    if (!failure.corrupt) NoteFruitless(replica_id, failure.status);
    EndGrant(failure.source.grant_id, failure.status, failure.corrupt);
  }

  // Files that went or changed are no source any more, bytes that cannot be read are lost; anything else (no
  // descriptor left, a disk that is away) is of this moment.
  void NoteOriginFailure(const absl::Status& status) {
    const bool lost = absl::IsDataLoss(status);
    corrupt_ |= lost;
    origin_failed_ |= !lost && !IsAboutOriginFiles(status);
  }

  // The try of this replica ended with this.
  void NoteFruitless(const std::string& replica_id, const absl::Status& status) {
    Tried& replica = replicas_[replica_id];
    ++replica.fruitless;
    replica.busy = MayBeBusy(status);
    peer_failed_ = true;
  }

  void EndAll(const absl::Status& status) {
    offered_.clear();
    while (!held_.empty()) EndGrant(held_.begin()->first, status, false);
  }

  // Completes the grant and closes what it opened; nobody waits for either.
  void EndGrant(std::string grant_id, const absl::Status& status, bool corrupt) {
    const auto node = held_.extract(grant_id);
    if (node.empty()) return;
    const Held& held = node.mapped();
    const v1::TransportGrant& grant = held.grant;
    parts_.grants->Remove(grant_id);
    v1::CompleteReplicaTransportRequest complete;
    *complete.mutable_node() = parts_.link->identity();
    complete.set_grant_id(grant.grant_id());
    complete.set_outcome(status.ok()                 ? v1::TRANSPORT_OUTCOME_SUCCEEDED
                         : absl::IsCancelled(status) ? v1::TRANSPORT_OUTCOME_CANCELLED
                                                     : v1::TRANSPORT_OUTCOME_FAILED);
    if (!status.ok()) *complete.mutable_error() = rpc::ToProto(status);
    complete.set_source_corrupt(corrupt);
    parts_.background->Run([parts = parts_, complete, close = held.pull_opened,
                            peer = PeerAddress(grant.source().grpc_address(), grant.source().name()),
                            trace = trace_] {
      const otel::Scope scope(trace);
      const auto call = [&trace] {
        RequestContext context = RequestContext::Background(kEndingTimeout);
        context.trace = trace;
        return context;
      };
      if (close) {
        v1::ClosePullRequest request;
        request.set_grant_id(complete.grant_id());
        if (complete.has_error()) *request.mutable_error() = complete.error();
        // A source that cannot be told ends it with the grant.
        parts.peers->ClosePull(call(), peer, request).IgnoreError();
      }
      const absl::Status told = parts.global_store->CompleteReplicaTransport(call(), complete);
      LOG_IF(WARNING, !told.ok()) << "The end of grant " << complete.grant_id()
                                  << " was not told; it expires: " << told;
    });
  }

  // The last word of each that was tried.
  void NoteTried(const std::string& what, const absl::Status& status) {
    const auto known = std::ranges::find(tried_, what, &std::pair<std::string, std::string>::first);
    if (known == tried_.end()) {
      tried_.emplace_back(what, status.message());
    } else {
      known->second = status.message();
    }
  }

  absl::Status NothingLeft() const {
    std::string message = absl::StrCat("no source of ", request_.manifest->id(), " is left");
    if (!request_.lane.empty()) absl::StrAppend(&message, " over the lane ", request_.lane);
    if (!no_source_reason_.empty()) absl::StrAppend(&message, ": ", no_source_reason_);
    if (!waited_for_.empty()) absl::StrAppend(&message, "; not there: ", absl::StrJoin(waited_for_, ", "));
    if (!waited_in_vain_.empty()) {
      absl::StrAppend(&message, "; waited in vain for ", absl::StrJoin(waited_in_vain_, ", "));
    }
    if (!tried_.empty()) {
      absl::StrAppend(&message, "; tried ", absl::StrJoin(tried_, "; ", absl::PairFormatter(": ")));
    }
    // What may be otherwise in a moment is worth another request; a file that changed is not.
    if (peer_failed_ || origin_failed_ || global_store_failed_ || !waited_in_vain_.empty() ||
        !waited_for_.empty()) {
      return absl::UnavailableError(message);
    }
    return corrupt_ ? absl::DataLossError(message) : absl::NotFoundError(message);
  }

  const SourceFinder::Options parts_;
  const SourceRequest request_;
  TraceContext trace_;  // of the ingest, for what is done after it
  WaitObserver observer_;
  std::optional<v1::Origin> origin_;  // on this node, as the last answer named it
  bool origin_tried_ = false;
  std::map<std::string, Held> held_;                      // by grant id
  std::deque<std::string> offered_;                       // of those held: the ones that are not opened yet
  absl::Duration look_again_ = absl::InfiniteDuration();  // as the global store said last...
  SteadyTime look_at_ = SteadyTime::InfiniteFuture();     // ...from then on
  StallWatch hostmates_;
  bool may_look_beside_ = true;
  int asked_beside_ = 0;
  std::map<std::string, Tried> replicas_;  // elsewhere, by id
  std::vector<std::pair<std::string, std::string>> tried_;
  std::vector<SourceFailure> unopened_;
  // The global store's words, of its last answer.
  std::string no_source_reason_;
  std::vector<std::string> waited_for_;
  std::vector<std::string> waited_in_vain_;
  bool peer_failed_ = false;    // one at least, for another reason than wrong bytes
  bool origin_failed_ = false;  // for a reason that passes
  bool global_store_failed_ = false;
  bool corrupt_ = false;
};

}  // namespace

std::shared_ptr<SourceProvider> SourceFinder::Find(SourceRequest request) const {
  return std::make_shared<ReplicaSourceProvider>(options_, std::move(request));
}

}  // namespace tensorcast::daemon
