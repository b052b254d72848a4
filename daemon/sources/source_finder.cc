#include "daemon/sources/source_finder.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/ingest/progress_stall.h"
#include "daemon/node/node_messages.h"
#include "daemon/sources/held_grants.h"
#include "daemon/sources/origin_files.h"
#include "rpc/convert/convert.h"
#include "rpc/retry.h"

namespace tensorcast::daemon {
namespace {

constexpr absl::Duration kCheckInTimeout = absl::Seconds(5);

// While no source answers, others are looked for after so long; each time after twice as long.
constexpr absl::Duration kLookElsewhere = absl::Milliseconds(250);
// While some are in use, those that are being opened are waited for so long at a time.
constexpr absl::Duration kBesideWait = absl::Milliseconds(50);

// A source that delivered nothing is asked again, after a pause that grows, and so many times in a row. One
// that is alive and gives no byte for the whole of its time may be busy with others: it is asked for longer.
constexpr int kTriesOfAFailing = 3;
constexpr int kTriesOfABusy = 20;
constexpr absl::Duration kFirstPause = absl::Milliseconds(250);
constexpr absl::Duration kLongestPause = absl::Seconds(2);

bool MayBeBusy(const absl::Status& failure) {
  return absl::IsDeadlineExceeded(failure) || absl::IsResourceExhausted(failure);
}

// "node-b (tcp)", "global store".
std::string NameOf(const SourceInfo& source) {
  return source.lane.empty() ? source.name : absl::StrCat(source.name, " (", source.lane, ")");
}

// What a failure of one source means for the request. Files of the import that went or changed are not
// sources any more, and bytes that cannot be read are lost. Anything else (a peer's own deadline or pool, no
// descriptor left, a disk that is away, a global store that does not answer) is of this moment.
absl::StatusCode CodeForRequest(const SourceFailure& failure) {
  if (failure.corrupt) return absl::StatusCode::kDataLoss;
  const bool origin = failure.source.type == SourceType::kDisk && failure.source.grant_id.empty();
  if (origin && absl::IsDataLoss(failure.status)) return absl::StatusCode::kDataLoss;
  if (origin && IsAboutOriginFiles(failure.status)) return absl::StatusCode::kNotFound;
  return absl::StatusCode::kUnavailable;
}

// Of the failures of a request the one to answer it with: what may be otherwise in a moment is worth another
// request, wrong bytes are worse than files that went. Null: nothing failed.
const SourceFailure* Decisive(std::span<const SourceFailure> failures) {
  for (const absl::StatusCode code :
       {absl::StatusCode::kUnavailable, absl::StatusCode::kDataLoss, absl::StatusCode::kNotFound}) {
    const auto found = std::ranges::find(failures, code, CodeForRequest);
    if (found != failures.end()) return &*found;
  }
  return nullptr;
}

// How many grants a transfer wants at most; the global store may give fewer. More gain nothing, and each
// chunk then takes longer to come and be passed on.
constexpr size_t kMaxSources = 6;
// Questions for more sources while there are some, so that the global store's work a transfer is bounded.
constexpr int kMaxAskedBeside = 6;
// And so many since those in use gave nothing.
constexpr int kMaxAskedStalled = 6;

// Of other hosts, where those of this one give nothing.
constexpr uint32_t kSourcesBesideHostmates = 4;

using Source = std::unique_ptr<ChunkSource>;

class ReplicaSourceProvider : public SourceProvider {
 public:
  // Without a Finish, every call left the ingest before it began, or the engine dropped it.
  ReplicaSourceProvider(const SourceFinder::Options& parts, SourceRequest request)
      : parts_(parts), request_(std::move(request)), held_(parts.grants, request_.manifest, request_.lane) {}

  void ObserveWaits(const WaitObserver& observer) override { observer_ = observer; }

  absl::StatusOr<MoreSources> Next(const RequestContext& context, std::span<const SourceFailure> ended,
                                   bool needed) override {
    held_.SetTrace(context.trace);
    for (const SourceFailure& failure : ended) NoteFailure(failure);
    if (!needed) return FindBeside(context, !ended.empty());
    absl::StatusOr<MoreSources> found = Find(context);
    ObserveWait("");
    return found;
  }

  bool NoteStall() override {
    stalled_ = asked_stalled_ < kMaxAskedStalled && held_.all().size() < kMaxSources;
    return stalled_;
  }

  std::vector<SourceFailure> TakeUnopened() override { return std::exchange(unopened_, {}); }

  void Finished(const absl::Status& status, std::span<const SourceFailure> ended) override {
    for (const SourceFailure& failure : ended) NoteFailure(failure);
    held_.EndAll(status);
  }

 private:
  // What became of a replica elsewhere in this transfer.
  struct Tried {
    int fruitless = 0;  // tries in a row that gave nothing
    bool busy = false;  // perhaps, when it was tried last
    bool corrupt = false;
    bool rests = false;  // its peer was overtaken lately
    bool given_up() const { return corrupt || fruitless >= (busy ? kTriesOfABusy : kTriesOfAFailing); }
  };
  // No source is in use: waits until there is one.
  absl::StatusOr<MoreSources> Find(const RequestContext& context) {
    while (true) {
      TC_RETURN_IF_ERROR(context.Check("looking for a source"));
      if (offered_.empty() && !held_.IsOpening()) {
        TC_ASSIGN_OR_RETURN(v1::RequestReplicaTransportResponse answer, AskForGrants(context, true));
        // Those that failed before are asked again only when this node has nothing itself.
        if (std::ranges::all_of(offered_, [this](const auto& id) { return WasTried(id); })) {
          if (std::optional<Source> source = TryOrigin(context)) return InsteadOfOthers(*std::move(source));
        }
        if (offered_.empty()) {
          waited_for_.assign(answer.waiting_for().begin(), answer.waiting_for().end());
          no_source_reason_ = answer.no_source_reason();
          if (!answer.has_retry_after() || request_.lane == kDiskLane) return NothingLeft();
          TC_RETURN_IF_ERROR(Wait(context, rpc::FromProto(answer.retry_after())));
          continue;
        }
        // Before a peer is opened that was overtaken lately, others are asked for.
        if (std::ranges::all_of(offered_, [this](const auto& id) { return held_.Rests(id); })) {
          TC_RETURN_IF_ERROR(AskForGrants(context, false, /*beside_stalled=*/1).status());
        }
      }
      TC_RETURN_IF_ERROR(OpenOffered(context));
      held_.AwaitOpening(context, look_elsewhere_at_);
      if (std::vector<Source> opened = TakeOpened(context); !opened.empty()) return With(std::move(opened));
      if (!held_.IsOpening() || SteadyNow() < look_elsewhere_at_) continue;
      // No source answers.
      if (std::optional<Source> source = TryOrigin(context)) return InsteadOfOthers(*std::move(source));
      if (held_.all().size() < kMaxSources) {
        TC_RETURN_IF_ERROR(AskForGrants(context, false, /*beside_stalled=*/1).status());
      }
      OpenAll(context);
      look_elsewhere_after_ *= 2;
      look_elsewhere_at_ = SteadyNow() + look_elsewhere_after_;
    }
  }

  // Some are in use: what can be had now, without a long wait.
  absl::StatusOr<MoreSources> FindBeside(const RequestContext& context, bool one_ended) {
    const SteadyTime now = SteadyNow();
    WatchHostmates(now);
    const bool stalled = std::exchange(stalled_, false);
    if (stalled) {
      ++asked_stalled_;
      if (std::optional<Source> source = TryOrigin(context)) return Beside(*std::move(source));
    }
    if (offered_.empty() && (stalled || hostmates_.TakeStall(now))) {
      const uint32_t min = stalled ? 1 : kSourcesBesideHostmates;
      TC_RETURN_IF_ERROR(AskForGrants(context, false, /*beside_stalled=*/min).status());
    } else if (offered_.empty() && !held_.IsOpening()) {
      // Only the watch wanted to be asked.
      const bool early = hostmates_.LookIn() < absl::InfiniteDuration() && !one_ended && now < look_at_;
      if (early) return MoreSources{.sources = {}, .look_again = LookAgain(look_at_ - now)};
      const bool enough = !may_look_beside_ || held_.all().size() >= kMaxSources;
      if (enough || asked_beside_ == kMaxAskedBeside) {
        return MoreSources{.sources = {}, .look_again = hostmates_.LookIn()};
      }
      ++asked_beside_;
      TC_RETURN_IF_ERROR(AskForGrants(context, false).status());
    }
    EndResting();
    OpenAll(context);
    held_.AwaitOpening(context, now + kBesideWait);
    TC_RETURN_IF_ERROR(context.Check("looking for another source"));
    if (std::vector<Source> opened = TakeOpened(context); !opened.empty()) return With(std::move(opened));
    EndOvertaken();
    return MoreSources{.sources = {},
                       .look_again = held_.IsOpening() ? absl::ZeroDuration() : LookAgain(look_again_)};
  }

  // Where all sources in use are of this host and fill yet, what they do not bring has to come from
  // elsewhere.
  void WatchHostmates(SteadyTime now) {
    uint64_t chunks = 0;
    bool only_these = false;
    for (const auto& [grant_id, held] : held_.all()) {
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

  // It needs no other source beside it: it is of this host, and as fast as memory or its disk.
  MoreSources Only(Source source) {
    may_look_beside_ = false;
    MoreSources more;
    more.sources.push_back(std::move(source));
    return more;
  }

  MoreSources InsteadOfOthers(Source source) {
    offered_.clear();
    std::vector<std::string> silent;
    for (const auto& [grant_id, held] : held_.all()) {
      if (held.opening != nullptr) silent.push_back(grant_id);
    }
    const absl::Status overtaken = absl::DeadlineExceededError(
        "it was overtaken: it has not answered, and the files of the import were "
        "there to be read");
    for (const std::string& id : silent) NoteOvertaken(id, overtaken);
    held_.EndAll(absl::CancelledError("the files of the import are read instead"));
    return Only(std::move(source));
  }

  MoreSources Beside(Source source) const {
    MoreSources more{.sources = {}, .look_again = LookAgain(look_again_)};
    more.sources.push_back(std::move(source));
    return more;
  }

  MoreSources With(std::vector<Source> opened) {
    const auto whole = std::ranges::find_if(opened, [](const Source& source) {
      return source->info().type != SourceType::kRemote && HasAll(*source);
    });
    if (whole != opened.end()) {
      Source source = std::move(*whole);
      const std::set<std::string> opened_now = GrantsOf(opened);
      opened.clear();
      offered_.clear();
      std::vector<std::string> others;
      for (const auto& [grant_id, held] : held_.all()) {
        if (!held.in_use || opened_now.contains(grant_id)) others.push_back(grant_id);
      }
      for (const std::string& id : others) {
        held_.End(id, absl::CancelledError("a replica on this host is read instead"));
      }
      return Only(std::move(source));
    }
    may_look_beside_ = true;  // also after one of this host that failed
    EndResting();
    WatchHostmates(SteadyNow());
    const bool more_to_open = !offered_.empty() || held_.IsOpening();
    return {.sources = std::move(opened),
            .look_again = more_to_open ? absl::ZeroDuration() : LookAgain(look_again_)};
  }

  // Of those that are left of them.
  static std::set<std::string> GrantsOf(const std::vector<Source>& opened) {
    std::set<std::string> grants;
    for (const Source& source : opened) {
      if (source != nullptr) grants.insert(source->info().grant_id);
    }
    return grants;
  }

  static bool HasAll(const ChunkSource& source) {
    const std::shared_ptr<const Availability> has = source.availability();
    return has == nullptr || has->complete();
  }

  std::string ReplicaOf(const std::string& grant_id) const { return held_.all().at(grant_id).replica_name(); }

  bool WasTried(const std::string& grant_id) const { return replicas_.contains(ReplicaOf(grant_id)); }

  int Fruitless(const std::string& grant_id) const {
    const auto tried = replicas_.find(ReplicaOf(grant_id));
    return tried == replicas_.end() ? 0 : tried->second.fruitless;
  }

  // Of those that were offered: there is something better.
  void EndResting() {
    for (const std::string& id : std::exchange(offered_, {})) {
      if (!held_.Rests(id)) {
        offered_.push_back(id);
        continue;
      }
      replicas_[ReplicaOf(id)].rests = true;
      held_.End(id, absl::CancelledError("it was overtaken lately, and there is another source"));
    }
  }

  // Side by side: of those that were offered the ones of which nothing bad is known, else those that rest.
  // One that gave nothing before is asked again alone, after a pause.
  absl::Status OpenOffered(const RequestContext& context) {
    const auto is_fresh = [this](const std::string& id) { return Fruitless(id) == 0 && !held_.Rests(id); };
    if (std::ranges::any_of(offered_, is_fresh)) EndResting();
    for (const std::string& id : std::exchange(offered_, {})) {
      if (Fruitless(id) == 0) {
        Open(context, id);
      } else {
        offered_.push_back(id);
      }
    }
    if (held_.IsOpening() || offered_.empty()) return absl::OkStatus();
    const std::string first = offered_.front();
    TC_RETURN_IF_ERROR(PauseBefore(context, first));
    offered_.pop_front();
    Open(context, first);
    return absl::OkStatus();
  }

  void OpenAll(const RequestContext& context) {
    for (const std::string& id : std::exchange(offered_, {})) Open(context, id);
  }

  void Open(const RequestContext& context, const std::string& grant_id) {
    if (!held_.IsOpening()) {
      look_elsewhere_after_ = kLookElsewhere;
      look_elsewhere_at_ = SteadyNow() + look_elsewhere_after_;
    }
    held_.Open(context, grant_id);
  }

  std::vector<Source> TakeOpened(const RequestContext& context) {
    std::vector<Source> sources;
    for (GrantOpening& opened : held_.TakeOpened()) {
      const absl::Status& status = opened.source.status();
      if (!status.ok()) NoteUnopened(context, opened.grant_id, status, opened.unopened);
      for (SourceFailure& lane : opened.unopened) unopened_.push_back(std::move(lane));
      if (status.ok()) sources.push_back(*std::move(opened.source));
    }
    return sources;
  }

  void EndOvertaken() {
    for (const std::string& id : held_.Overtaken()) NoteOvertaken(id, held_.OvertakenStatus());
  }

  void NoteOvertaken(const std::string& grant_id, const absl::Status& status) {
    const v1::TransportGrant& grant = held_.all().at(grant_id).grant;
    unopened_.push_back(FailureToOpen(grant, grant.lane(), status));
    NoteUnopened({}, grant_id, status, {&unopened_.back(), 1});
  }

  // `lanes`: what became of each that was tried.
  void NoteUnopened(const RequestContext& context, const std::string& grant_id, const absl::Status& status,
                    std::span<const SourceFailure> lanes) {
    LOG(WARNING) << "open source " << held_.all().at(grant_id).grant.source().name() << " of "
                 << request_.manifest->id() << ": " << status;
    NoteFruitless(ReplicaOf(grant_id), status);
    for (const SourceFailure& lane : lanes) NoteFailed(lane);
    // One that had no more time than the transfer has was not overtaken.
    const bool in_time = context.Check("opening a source").ok();
    held_.End(grant_id, in_time ? status : absl::CancelledError("the transfer ended before it was opened"));
  }

  // Before one that gave nothing when it was asked last is asked again.
  absl::Status PauseBefore(const RequestContext& context, const std::string& grant_id) {
    const int fruitless = Fruitless(grant_id);
    if (fruitless == 0) return absl::OkStatus();
    const std::string& name = held_.all().at(grant_id).grant.source().name();
    ObserveWait(absl::StrCat(name, ", which gave nothing"));
    const absl::Duration pause = std::min(kFirstPause * std::exp2(fruitless - 1), kLongestPause);
    const absl::Status paused =
        rpc::SleepFor(context, pause, absl::StrCat("asking ", name, ", which gave nothing, again"));
    if (paused.ok()) return paused;
    offered_.clear();
    held_.EndAll(paused);
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
  // `beside_stalled`: those that are held give nothing, and so many are wanted beside them at least; 0: they
  // do.
  absl::StatusOr<v1::RequestReplicaTransportResponse> AskForGrants(const RequestContext& context, bool again,
                                                                   uint32_t beside_stalled = 0) {
    v1::RequestReplicaTransportRequest request;
    *request.mutable_node() = parts_.grants.link->identity();
    request.set_artifact_id(request_.manifest->id());
    *request.mutable_destination() = ToProto(request_.destination, parts_.devices);
    for (const auto& [replica_name, tried] : replicas_) {
      // One that is held again is slow only where it gives nothing now.
      if (held_.Holds(replica_name)) continue;
      const bool excluded = tried.given_up() || (!again && (tried.fruitless > 0 || tried.rests));
      (excluded ? request.add_excluded_replicas() : request.add_slow_replicas())->assign(replica_name);
      if (tried.corrupt) request.add_corrupt_replicas(replica_name);
    }
    if (context.deadline != SteadyTime::InfiniteFuture()) {
      *request.mutable_timeout() = rpc::ToProto(TimeLeft(context.deadline));
    }
    request.set_required_lane(request_.lane);
    const size_t held_now = held_.all().size();
    request.set_sources(static_cast<uint32_t>(kMaxSources - std::min(held_now, kMaxSources)));
    for (const auto& [grant_id, held] : held_.all()) {
      request.add_held_grants(grant_id);
      if (beside_stalled > 0) request.add_slow_replicas(held.replica_name());
    }
    request.set_sources(std::max(request.sources(), beside_stalled));
    absl::StatusOr<v1::RequestReplicaTransportResponse> answer = Request(context, request);
    if (absl::IsNotFound(answer.status()) || absl::IsAborted(answer.status())) {
      // The artifact is unknown, or this node is: the global store may have been restarted since the last
      // heartbeat.
      const absl::Status known =
          parts_.grants.link->CheckIn(std::min(context.deadline, SteadyNow() + kCheckInTimeout));
      answer = known.ok() ? Request(context, request) : known;
    }
    if (answer.ok()) {
      origin_ = OwnOrigin(*answer);
      for (v1::TransportGrant& grant : *answer->mutable_grants()) {
        offered_.push_back(held_.Add(std::move(grant)));
      }
      look_again_ =
          answer->has_look_again() ? rpc::FromProto(answer->look_again()) : absl::InfiniteDuration();
      look_at_ = SteadyNow() + look_again_;
      return answer;
    }
    TC_RETURN_IF_ERROR(context.Check("looking for a source"));
    if (absl::IsNotFound(answer.status())) return answer;
    // Without the global store what this node has itself is still there to be read.
    NoteFailed({.source = {SourceType::kRemote, "", "global store"}, .status = answer.status()});
    return v1::RequestReplicaTransportResponse();
  }

  // Each grant is a mutation of its own, though all are asked for on behalf of one request.
  absl::StatusOr<v1::RequestReplicaTransportResponse> Request(
      const RequestContext& context, const v1::RequestReplicaTransportRequest& request) {
    RequestContext call = context.Child();
    call.request_id = NewUuid();
    return parts_.grants.global_store->RequestReplicaTransport(call, request);
  }

  // The files of the import on this node, once.
  std::optional<Source> TryOrigin(const RequestContext& context) {
    const bool wanted = request_.lane.empty() || request_.lane == kDiskLane;
    if (!wanted || !origin_.has_value() || std::exchange(origin_tried_, true)) return std::nullopt;
    absl::StatusOr<Source> source = OpenOriginSource(context, *parts_.objects, *origin_, *request_.manifest);
    if (source.ok()) return *std::move(source);
    unopened_.push_back(
        {.source = {SourceType::kDisk, std::string(kDiskLane), "origin"}, .status = source.status()});
    NoteFailed(unopened_.back());
    return std::nullopt;
  }

  std::optional<Origin> OwnOrigin(const v1::RequestReplicaTransportResponse& answer) const {
    const auto own = std::ranges::find(answer.origins(), parts_.grants.link->node_id(), &v1::Origin::node_id);
    return own == answer.origins().end() ? std::nullopt : std::optional<Origin>(rpc::FromProto(*own));
  }

  void NoteFailure(const SourceFailure& failure) {
    NoteFailed(failure);
    const auto held = held_.all().find(failure.source.grant_id);
    if (held == held_.all().end()) return;
    const std::string replica_name = held->second.replica_name();
    Tried& replica = replicas_[replica_name];
    if (failure.delivered > 0) replica.fruitless = 0;
    replica.corrupt = failure.corrupt;
    if (!failure.corrupt) NoteFruitless(replica_name, failure.status);
    held_.End(failure.source.grant_id, failure.status, failure.corrupt);
  }

  // The try of this replica ended with this.
  void NoteFruitless(const std::string& replica_name, const absl::Status& status) {
    Tried& replica = replicas_[replica_name];
    ++replica.fruitless;
    replica.busy = MayBeBusy(status);
  }

  // The last failure of each source is kept, and beside it that its bytes were wrong.
  void NoteFailed(const SourceFailure& failure) {
    const auto known = std::ranges::find_if(failures_, [&failure](const SourceFailure& other) {
      return NameOf(other.source) == NameOf(failure.source) && other.corrupt == failure.corrupt;
    });
    if (known == failures_.end()) {
      failures_.push_back(failure);
    } else {
      *known = failure;
    }
  }

  // The decisive failure's status, which comes last, behind what else is known.
  absl::Status NothingLeft() const {
    std::string message = absl::StrCat("no source of ", request_.manifest->id(), " is left");
    if (!request_.lane.empty()) absl::StrAppend(&message, " over the lane ", request_.lane);
    if (!no_source_reason_.empty()) absl::StrAppend(&message, ": ", no_source_reason_);
    if (!waited_for_.empty()) absl::StrAppend(&message, "; not there: ", absl::StrJoin(waited_for_, ", "));
    if (!waited_in_vain_.empty()) {
      absl::StrAppend(&message, "; waited in vain for ", absl::StrJoin(waited_in_vain_, ", "));
    }
    const SourceFailure* decisive = Decisive(failures_);
    for (const SourceFailure& failure : failures_) {
      if (&failure == decisive) continue;
      absl::StrAppend(&message, "; ", NameOf(failure.source), ": ", failure.status.message());
    }
    const bool waited = !waited_in_vain_.empty() || !waited_for_.empty();
    if (decisive == nullptr) return waited ? absl::UnavailableError(message) : absl::NotFoundError(message);
    absl::StrAppend(&message, "; ", NameOf(decisive->source));
    const absl::StatusCode code = waited ? absl::StatusCode::kUnavailable : CodeForRequest(*decisive);
    // With what it carries, such as that the global store is away for long: that is not tried again.
    const absl::Status whole = Annotate(decisive->status, message);
    return whole.code() == code ? whole : absl::Status(code, whole.message());
  }

  const SourceFinder::Options parts_;
  const SourceRequest request_;
  WaitObserver observer_;
  std::optional<Origin> origin_;  // on this node, as the last answer named it
  bool origin_tried_ = false;
  HeldGrants held_;
  std::deque<std::string> offered_;  // of those held, the best first
  // While no source that is being opened answers.
  SteadyTime look_elsewhere_at_;
  absl::Duration look_elsewhere_after_;
  absl::Duration look_again_ = absl::InfiniteDuration();  // as the global store said last...
  SteadyTime look_at_ = SteadyTime::InfiniteFuture();     // ...from then on
  ProgressStall hostmates_;
  bool may_look_beside_ = true;
  int asked_beside_ = 0;
  bool stalled_ = false;  // said since Next was called last
  int asked_stalled_ = 0;
  std::map<std::string, Tried> replicas_;  // elsewhere, by id
  std::vector<SourceFailure> failures_;    // the first that failed first
  std::vector<SourceFailure> unopened_;    // since TakeUnopened
  // The global store's words, of its last answer.
  std::string no_source_reason_;
  std::vector<std::string> waited_for_;
  std::vector<std::string> waited_in_vain_;
};

}  // namespace

std::shared_ptr<SourceProvider> SourceFinder::Find(SourceRequest request) const {
  return std::make_shared<ReplicaSourceProvider>(options_, std::move(request));
}

}  // namespace tensorcast::daemon
