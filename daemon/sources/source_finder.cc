#include "daemon/sources/source_finder.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "core/ingest/progress_stall.h"
#include "daemon/node/node_messages.h"
#include "daemon/sources/grant_requests.h"
#include "daemon/sources/held_grants.h"
#include "daemon/sources/offered_grants.h"
#include "daemon/sources/origin_sources.h"
#include "daemon/sources/source_failures.h"
#include "rpc/convert/convert.h"
#include "rpc/retry.h"

namespace tensorcast::daemon {
namespace {

// While some are in use, those that are being opened are waited for so long at a time.
constexpr absl::Duration kBesideWait = absl::Milliseconds(50);

// The shortest wait for a source that is to come soon, where the transfer has that much time.
constexpr absl::Duration kMinWait = absl::Milliseconds(250);

// Questions for more sources while there are some, so that the global store's work a transfer is bounded; and
// so many since those in use gave nothing.
constexpr int kMaxAskedBeside = 6;

// Of other hosts, where those of this one give nothing.
constexpr uint32_t kSourcesBesideHostmates = 4;

// Up to this size a difference takes one source, and another one only where that gives nothing: each further
// grant is a call more to end it, for each follower of a key and each version, and saves milliseconds.
constexpr uint64_t kSmallDifference = uint64_t{32} << 20;

using Source = std::unique_ptr<ChunkSource>;

MoreSources One(Source source, absl::Duration look_again = absl::InfiniteDuration()) {
  MoreSources more{.sources = {}, .look_again = look_again};
  more.sources.push_back(std::move(source));
  return more;
}

// The states of the search, all on the ingest's control thread:
//
//   no source in use (Find): ask for grants - open them side by side - wait for the first that answers.
//       None is offered: the files of the import, then a wait that the global store proposes, then again.
//       None answers: after a while (doubled each time) the files, then more grants.
//   some in use (FindBeside): take what has been opened meanwhile, end what is overtaken, and ask for more
//       where the global store said so, where the engine saw a stall, or where hostmates give nothing.
//   over (Finished): all grants end with the transfer's status.
//
// A grant is in `held_` until it ends, and also in `offered_` while it is neither opened nor in use.
class ReplicaSourceProvider : public SourceProvider {
 public:
  // Without a Finish, every call left the ingest before it began, or the engine dropped it.
  ReplicaSourceProvider(const SourceFinder::Options& parts, SourceRequest request)
      : parts_(parts),
        request_(std::move(request)),
        held_(parts.grants, request_.manifest, request_.lane),
        requests_(parts.grants, &held_, Wanted()),
        offered_(&held_, &requests_),
        origins_(parts.objects.get(), request_.manifest.get(),
                 request_.lane.empty() || request_.lane == kDiskLane, &requests_, &failures_) {}

  void ObserveWaits(const WaitObserver& observer) override { observer_ = observer; }

  void NoteFills(const std::string& replica_id) override { requests_.NoteFills(replica_id); }

  void NoteReceived(uint64_t bytes) override { requests_.NoteReceived(bytes); }

  absl::StatusOr<MoreSources> Next(const RequestContext& context, std::span<const SourceFailure> ended,
                                   bool needed) override {
    held_.SetTrace(context.trace);
    for (const SourceFailure& failure : ended) NoteFailure(failure);
    if (!needed) return FindBeside(context, !ended.empty());
    absl::StatusOr<MoreSources> found = Find(context);
    observer_("");
    return found;
  }

  // The engine says that the sources in use give nothing. The next call of Next looks for others.
  bool NoteStall() override {
    stalled_ = asked_stalled_ < kMaxAskedBeside && held_.all().size() < GrantRequests::kMaxSources;
    return stalled_;
  }

  // The transfer's report names these, too: sources that could not be opened, so the engine never had them.
  std::vector<SourceFailure> TakeUnopened() override { return failures_.TakeUnopened(); }

  void Finished(const absl::Status& status, std::span<const SourceFailure> ended) override {
    for (const SourceFailure& failure : ended) NoteFailure(failure);
    held_.EndAll(status);
  }

 private:
  // No source is in use: waits until there is one.
  // Ends with sources, or with the error of the request: of the context, of a deleted artifact (NOT_FOUND),
  // or that nothing is left.
  absl::StatusOr<MoreSources> Find(const RequestContext& context) {
    while (true) {
      TC_RETURN_IF_ERROR(context.Check(absl::StrCat("find a source of ", request_.manifest->id())));
      if (offered_.empty() && !held_.IsOpening()) {
        TC_ASSIGN_OR_RETURN(v1::RequestReplicaTransportResponse answer, AskForGrants(context, true));
        // Those that failed before are asked again only when this node has nothing itself.
        if (offered_.WereAllTried()) {
          if (Source source = origins_.TryFiles(context)) return InsteadOfOthers(std::move(source));
        }
        if (offered_.empty() && !origins_.has_shared()) {
          failures_.NoteAnswer(answer);
          if (!answer.has_retry_after() || request_.lane == kDiskLane) {
            return failures_.NothingLeft(request_.manifest->id(), request_.lane);
          }
          TC_RETURN_IF_ERROR(Wait(context, rpc::FromProto(answer.retry_after())));
          continue;
        }
        // Before a peer is opened that was overtaken lately, others are asked for.
        if (!origins_.has_shared() && offered_.AllRest()) {
          TC_RETURN_IF_ERROR(AskForGrants(context, false, /*beside_stalled=*/1).status());
        }
      }
      if (origins_.has_shared()) {
        offered_.OpenAll(context);
        Source source = origins_.TryShared(context);
        if (source == nullptr) continue;
        std::vector<Source> opened = TakeOpened(context);
        opened.push_back(std::move(source));
        return With(std::move(opened));
      }
      TC_RETURN_IF_ERROR(offered_.OpenBest(context, observer_));
      held_.AwaitOpening(context, offered_.look_elsewhere_at());
      if (std::vector<Source> opened = TakeOpened(context); !opened.empty()) return With(std::move(opened));
      if (!held_.IsOpening() || SteadyNow() < offered_.look_elsewhere_at()) continue;
      // No source answers.
      if (Source source = origins_.TryFiles(context)) return InsteadOfOthers(std::move(source));
      if (held_.all().size() < GrantRequests::kMaxSources) {
        TC_RETURN_IF_ERROR(AskForGrants(context, false, /*beside_stalled=*/1).status());
      }
      offered_.OpenAll(context);
      offered_.NoteLookedElsewhere();
    }
  }

  // Some are in use: what can be had now, without a long wait.
  // An error only means that there is no further source now; the sources in use stay.
  absl::StatusOr<MoreSources> FindBeside(const RequestContext& context, bool one_ended) {
    const SteadyTime now = SteadyNow();
    WatchHostmates(now);
    const bool stalled = std::exchange(stalled_, false);
    if (stalled) {
      ++asked_stalled_;
      if (Source source = origins_.TryFiles(context)) return One(std::move(source), LookAgain(look_again_));
    }
    if (offered_.empty() && (stalled || hostmates_.TakeStall(now))) {
      const uint32_t min = stalled ? 1 : kSourcesBesideHostmates;
      TC_RETURN_IF_ERROR(AskForGrants(context, false, /*beside_stalled=*/min).status());
    } else if (offered_.empty() && !held_.IsOpening()) {
      // Only the watch wanted to be asked.
      const bool early = hostmates_.LookIn() < absl::InfiniteDuration() && !one_ended && now < look_at_;
      if (early) return MoreSources{.sources = {}, .look_again = LookAgain(look_at_ - now)};
      // With all that it wants, it asks again where the global store wants it to: a source may be slow.
      const bool all = held_.all().size() >= GrantRequests::kMaxSources && now < look_at_;
      const bool enough = !may_look_beside_ || all;
      if (enough || asked_beside_ == kMaxAskedBeside) {
        return MoreSources{.sources = {}, .look_again = hostmates_.LookIn()};
      }
      ++asked_beside_;
      TC_RETURN_IF_ERROR(AskForGrants(context, false).status());
    }
    offered_.EndResting();
    offered_.OpenAll(context);
    held_.AwaitOpening(context, now + kBesideWait);
    TC_RETURN_IF_ERROR(context.Check(absl::StrCat("find another source of ", request_.manifest->id())));
    std::vector<Source> found = TakeOpened(context);
    if (Source source = origins_.TryShared(context)) found.push_back(std::move(source));
    if (!found.empty()) return With(std::move(found));
    for (const std::string& id : held_.Overtaken()) NoteUnopened({}, id, held_.OvertakenStatus(), {});
    return MoreSources{.sources = {},
                       .look_again = held_.IsOpening() ? absl::ZeroDuration() : LookAgain(look_again_)};
  }

  // Where all sources in use are of this host and fill yet, what they do not bring has to come from
  // elsewhere.
  void WatchHostmates(SteadyTime now) {
    const std::optional<uint64_t> chunks = held_.ChunksOfHostmates();
    if (!chunks.has_value()) return hostmates_.Reset();
    hostmates_.Note(*chunks, now);
  }

  absl::Duration LookAgain(absl::Duration otherwise) const {
    return std::min(otherwise, hostmates_.LookIn());
  }

  // It needs no other source beside it: it is of this host, and as fast as memory or its disk.
  MoreSources Only(Source source) {
    may_look_beside_ = false;
    return One(std::move(source));
  }

  MoreSources InsteadOfOthers(Source source) {
    offered_.Clear();
    const absl::Status overtaken = absl::DeadlineExceededError(
        "the source was overtaken: the files on this node from which the artifact was imported are read "
        "instead");
    for (const std::string& id : held_.BeingOpened()) NoteUnopened({}, id, overtaken, {});
    held_.EndAll(absl::CancelledError("the files of the import are read instead"));
    return Only(std::move(source));
  }

  // A whole replica on this host wins over all that was opened with it: the others are closed, and their
  // grants given back, so that their slots serve other receivers.
  MoreSources With(std::vector<Source> opened) {
    const auto whole = std::ranges::find_if(opened, [](const Source& source) {
      return source->info().type != SourceType::kRemote && !source->info().outside && HasAll(*source);
    });
    if (whole != opened.end()) {
      Source source = std::move(*whole);
      opened.erase(whole);
      const absl::Status instead = absl::CancelledError("a copy on the receiver's host is read instead");
      for (Source& other : opened) {
        const std::string id = other->info().grant_id;
        other.reset();
        held_.End(id, instead);
      }
      offered_.Clear();
      held_.EndUnused(instead);
      return Only(std::move(source));
    }
    may_look_beside_ = true;  // also after one of this host that failed
    offered_.EndResting();
    WatchHostmates(SteadyNow());
    const bool more_to_open = !offered_.empty() || held_.IsOpening();
    return {.sources = std::move(opened),
            .look_again = more_to_open ? absl::ZeroDuration() : LookAgain(look_again_)};
  }

  static bool HasAll(const ChunkSource& source) {
    const std::shared_ptr<const Availability> has = source.availability();
    return has == nullptr || has->complete();
  }

  std::vector<Source> TakeOpened(const RequestContext& context) {
    std::vector<Source> sources;
    for (GrantOpening& opened : held_.TakeOpened()) {
      const absl::Status& status = opened.source.status();
      if (status.ok()) {
        failures_.NoteUnopenedLanes(std::move(opened.unopened));
        sources.push_back(*std::move(opened.source));
      } else {
        NoteUnopened(context, opened.grant_id, status, std::move(opened.unopened));
      }
    }
    return sources;
  }

  // `lanes`: what became of each that was tried; none where the grant's own did not come to an end.
  void NoteUnopened(const RequestContext& context, const std::string& grant_id, const absl::Status& status,
                    std::vector<SourceFailure> lanes) {
    const HeldGrant& held = held_.all().at(grant_id);
    const v1::TransportGrant& grant = held.grant;
    LOG(WARNING) << "open source " << grant.source().name() << " of " << request_.manifest->id() << ": "
                 << status;
    if (lanes.empty()) lanes.push_back(FailureToOpen(grant, grant.lane(), status));
    for (SourceFailure& lane : lanes) failures_.NoteUnopened(std::move(lane));
    requests_.NoteFruitless(held.replica_name(), status);
    // One that had no more time than the transfer has was not overtaken.
    const bool in_time = context.Check("open a source").ok();
    held_.End(grant_id,
              in_time ? status : absl::CancelledError("the transfer ended before this source was opened"));
  }

  // Half of the time that is left at most, so that the last question is not asked when it is too late to use
  // its answer.
  absl::Status Wait(const RequestContext& context, absl::Duration duration) {
    const std::string what = failures_.NoteWait();
    observer_(what);
    return rpc::SleepFor(context, std::min(duration, std::max(kMinWait, TimeLeft(context.deadline) / 2)),
                         absl::StrCat("wait for a source of ", request_.manifest->id(), " (", what, ")"));
  }

  v1::RequestReplicaTransportRequest Wanted() const {
    v1::RequestReplicaTransportRequest wanted;
    wanted.set_artifact_id(request_.manifest->id());
    *wanted.mutable_destination() = ToProto(request_.destination, parts_.devices);
    wanted.set_required_lane(request_.lane);
    const Manifest& manifest = *request_.manifest;
    if (manifest.kind() == ArtifactKind::kDifference && manifest.layout().image_bytes <= kSmallDifference) {
      wanted.set_sources(1);
    }
    return wanted;
  }

  // As GrantRequests::Ask. What is granted is held and offered from then on. Nothing is in the answer while
  // the global store gives none.
  absl::StatusOr<v1::RequestReplicaTransportResponse> AskForGrants(const RequestContext& context, bool again,
                                                                   uint32_t beside_stalled = 0) {
    auto answer = requests_.Ask(context, again, beside_stalled);
    if (answer.ok()) {
      origins_.NoteAnswer(*answer, parts_.grants.link->node_id());
      for (v1::TransportGrant& grant : *answer->mutable_grants()) offered_.Add(std::move(grant));
      look_again_ =
          answer->has_look_again() ? rpc::FromProto(answer->look_again()) : absl::InfiniteDuration();
      look_at_ = SteadyNow() + look_again_;
      return answer;
    }
    TC_RETURN_IF_ERROR(context.Check(absl::StrCat("find a source of ", request_.manifest->id())));
    // The artifact was deleted or never published: the request ends with that, whatever this node has.
    if (absl::IsNotFound(answer.status())) return answer;
    // Without the global store what this node has itself is still there to be read.
    failures_.Note({.source = {SourceType::kRemote, "", "global store"}, .status = answer.status()});
    return v1::RequestReplicaTransportResponse();
  }

  void NoteFailure(const SourceFailure& failure) {
    failures_.Note(failure);
    if (failure.source.outside) origins_.NoteSharedFailed();
    const auto held = held_.all().find(failure.source.grant_id);
    if (held == held_.all().end()) return;
    requests_.NoteFailure(held->second.replica_name(), failure);
    held_.End(failure.source.grant_id, failure.status, failure.corrupt);
  }

  const SourceFinder::Options parts_;
  const SourceRequest request_;
  WaitObserver observer_ = [](const std::string&) {};
  HeldGrants held_;
  GrantRequests requests_;
  SourceFailures failures_;
  OfferedGrants offered_;
  OriginSources origins_;
  absl::Duration look_again_ = absl::InfiniteDuration();  // as the global store said last...
  SteadyTime look_at_ = SteadyTime::InfiniteFuture();     // ...from then on
  ProgressStall hostmates_;
  bool may_look_beside_ = true;
  int asked_beside_ = 0;
  bool stalled_ = false;  // said since Next was called last
  int asked_stalled_ = 0;
};

}  // namespace

std::shared_ptr<SourceProvider> SourceFinder::Find(SourceRequest request) const {
  return std::make_shared<ReplicaSourceProvider>(options_, std::move(request));
}

}  // namespace tensorcast::daemon
