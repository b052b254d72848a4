#include "daemon/sources/source_finder.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_join.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/steady_time.h"
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

using Source = std::unique_ptr<ChunkSource>;

class ReplicaSourceProvider : public SourceProvider {
 public:
  ReplicaSourceProvider(const SourceFinder::Options& parts, SourceRequest request)
      : parts_(parts), request_(std::move(request)) {}

  // Never Finished: nobody wanted the ingest any more before it began, or the engine dropped it.
  ~ReplicaSourceProvider() override { EndGrant(absl::CancelledError("the transfer was given up"), false); }

  void ObserveWaits(const WaitObserver& observer) override { observer_ = observer; }

  absl::StatusOr<Source> Next(const RequestContext& context, const SourceFailure* failure) override {
    trace_ = context.trace;
    if (failure != nullptr) NoteFailure(*failure);
    absl::StatusOr<Source> source = Find(context);
    ObserveWait("");
    return source;
  }

  std::vector<SourceFailure> TakeUnopened() override { return std::exchange(unopened_, {}); }

  void Finished(const absl::Status& status) override { EndGrant(status, false); }

 private:
  // What became of a replica elsewhere in this transfer.
  struct Tried {
    int fruitless = 0;  // tries in a row that gave nothing
    bool busy = false;  // perhaps, when it was tried last
    bool corrupt = false;
    bool given_up() const { return corrupt || fruitless >= (busy ? kTriesOfABusy : kTriesOfAFailing); }
  };

  absl::StatusOr<Source> Find(const RequestContext& context) {
    while (true) {
      TC_RETURN_IF_ERROR(context.Check("looking for a source"));
      TC_ASSIGN_OR_RETURN(v1::RequestReplicaTransportResponse answer, AskForGrant(context));
      if (answer.has_grant()) grant_ = std::move(*answer.mutable_grant());
      // One that failed before is asked again only when this node has nothing itself.
      if (!grant_.has_value() || replicas_.contains(grant_->replica().replica_id())) {
        if (std::optional<Source> source = TryOrigin()) {
          EndGrant(absl::CancelledError("the files of the import are read instead"), false);
          return *std::move(source);
        }
      }
      if (grant_.has_value()) {
        TC_RETURN_IF_ERROR(PauseBefore(context, grant_->replica().replica_id()));
        if (std::optional<Source> source = TryGrant(context)) return *std::move(source);
        continue;
      }
      waited_for_.assign(answer.waiting_for().begin(), answer.waiting_for().end());
      no_source_reason_ = answer.no_source_reason();
      if (!answer.has_retry_after() || request_.lane == kDiskLane) return NothingLeft();
      TC_RETURN_IF_ERROR(Wait(context, rpc::FromProto(answer.retry_after())));
    }
  }

  // A source under the grant; nullopt when it could not be opened.
  std::optional<Source> TryGrant(const RequestContext& context) {
    const Cancellation revoked = parts_.grants->Add(grant_->grant_id());
    GrantOpening opening = parts_.opener->Open(context, *grant_, *request_.manifest, request_.lane, revoked);
    pull_opened_ = opening.pull_opened;
    for (SourceFailure& lane : opening.unopened) unopened_.push_back(std::move(lane));
    if (!opening.source.ok()) {
      const absl::Status& status = opening.source.status();
      LOG(WARNING) << "Source " << grant_->source().name() << " of " << request_.manifest->id()
                   << " could not be opened: " << status;
      NoteFruitless(status);
      NoteTried(grant_->source().name(), status);
      EndGrant(status, false);
      return std::nullopt;
    }
    return *std::move(opening.source);
  }

  // Before one that gave nothing when it was asked last is asked again.
  absl::Status PauseBefore(const RequestContext& context, const std::string& replica_id) {
    const int fruitless = replicas_[replica_id].fruitless;
    if (fruitless == 0) return absl::OkStatus();
    ObserveWait(absl::StrCat(grant_->source().name(), ", which gave nothing"));
    const absl::Duration pause = std::min(kFirstPause * std::exp2(fruitless - 1), kLongestPause);
    const absl::Status paused = rpc::SleepFor(
        context, pause, absl::StrCat("asking ", grant_->source().name(), ", which gave nothing, again"));
    if (!paused.ok()) EndGrant(paused, false);
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
  absl::StatusOr<v1::RequestReplicaTransportResponse> AskForGrant(const RequestContext& context) {
    v1::RequestReplicaTransportRequest request;
    *request.mutable_node() = parts_.link->identity();
    request.set_artifact_id(request_.manifest->id());
    *request.mutable_destination() = ToProto(request_.destination, parts_.devices);
    for (const auto& [replica_id, tried] : replicas_) {
      (tried.given_up() ? request.add_excluded_replicas() : request.add_slow_replicas())->assign(replica_id);
      if (tried.corrupt) request.add_corrupt_replicas(replica_id);
    }
    if (context.deadline != SteadyTime::InfiniteFuture()) {
      *request.mutable_timeout() = rpc::ToProto(TimeLeft(context.deadline));
    }
    request.set_required_lane(request_.lane);
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
    if (grant_.has_value()) {
      Tried& replica = replicas_[grant_->replica().replica_id()];
      if (failure.delivered > 0) replica.fruitless = 0;
      replica.corrupt = failure.corrupt;
      if (!failure.corrupt) NoteFruitless(failure.status);
    } else {
      NoteOriginFailure(failure.status);
    }
    corrupt_ |= failure.corrupt;
    EndGrant(failure.status, failure.corrupt);
  }

  // Files that went or changed are no source any more, bytes that cannot be read are lost; anything else (no
  // descriptor left, a disk that is away) is of this moment.
  void NoteOriginFailure(const absl::Status& status) {
    const bool lost = absl::IsDataLoss(status);
    corrupt_ |= lost;
    origin_failed_ |= !lost && !IsAboutOriginFiles(status);
  }

  // The try of the source under the grant ended with this.
  void NoteFruitless(const absl::Status& status) {
    Tried& replica = replicas_[grant_->replica().replica_id()];
    ++replica.fruitless;
    replica.busy = MayBeBusy(status);
    peer_failed_ = true;
  }

  // Completes the running grant, if there is one, and closes what it opened; nobody waits for either.
  void EndGrant(const absl::Status& status, bool corrupt) {
    if (!grant_.has_value()) return;
    const v1::TransportGrant grant = *std::exchange(grant_, std::nullopt);
    parts_.grants->Remove(grant.grant_id());
    v1::CompleteReplicaTransportRequest complete;
    *complete.mutable_node() = parts_.link->identity();
    complete.set_grant_id(grant.grant_id());
    complete.set_outcome(status.ok()                 ? v1::TRANSPORT_OUTCOME_SUCCEEDED
                         : absl::IsCancelled(status) ? v1::TRANSPORT_OUTCOME_CANCELLED
                                                     : v1::TRANSPORT_OUTCOME_FAILED);
    if (!status.ok()) *complete.mutable_error() = rpc::ToProto(status);
    complete.set_source_corrupt(corrupt);
    if (status.ok()) complete.set_bytes(grant.replica().image_bytes());
    const bool close = std::exchange(pull_opened_, false);
    parts_.background->Run([parts = parts_, complete, close,
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
  std::optional<v1::TransportGrant> grant_;
  bool pull_opened_ = false;
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
