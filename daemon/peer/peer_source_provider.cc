#include "daemon/peer/peer_source_provider.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_join.h"
#include "core/status/status.h"
#include "daemon/peer/granted_source.h"
#include "daemon/peer/own_sources.h"
#include "daemon/wire/wire.h"
#include "otel/api/steady_time.h"
#include "rpc/convert/convert.h"

namespace tensorcast::daemon {
namespace {

constexpr absl::Duration kErrandTimeout = absl::Seconds(5);
constexpr absl::Duration kCheckInTimeout = absl::Seconds(5);

using Source = std::unique_ptr<ChunkSource>;

class PeerSourceProvider : public SourceProvider {
 public:
  PeerSourceProvider(const PeerAccess* access, PeerSourceRequest request)
      : access_(*access), request_(std::move(request)) {
    use_peers_ = request_.lane != kDiskLane;
    use_origins_ = request_.lane.empty() || request_.lane == kDiskLane;
  }

  // Never Finished: nobody wanted the ingest any more before it began, or the engine dropped it.
  ~PeerSourceProvider() override { EndGrant(absl::CancelledError("the transfer was given up"), false); }

  absl::StatusOr<Source> Next(const RequestContext& context, const SourceFailure* failure) override {
    if (failure != nullptr) {
      NoteFailure(*failure);
    }
    while (use_peers_) {
      TC_RETURN_IF_ERROR(context.Check("looking for a source"));
      if (std::optional<Source> source = TryGrant(context)) {
        return *std::move(source);
      }
    }
    if (std::exchange(use_origins_, false)) {
      TakeOrigins(context);
    }
    while (!origins_.empty()) {
      const v1::Origin origin = std::move(origins_.front());
      origins_.pop_front();
      absl::StatusOr<Source> source = OpenOriginSource(*access_.import_roots, origin, *request_.manifest);
      if (source.ok()) {
        return source;
      }
      Tried("origin", source.status());
      unopened_.push_back(
          {.source = {SourceType::kDisk, std::string(kDiskLane), "origin"}, .status = source.status()});
    }
    return NothingLeft();
  }

  std::vector<SourceFailure> TakeUnopened() override { return std::exchange(unopened_, {}); }

  void Finished(const absl::Status& status) override { EndGrant(status, false); }

 private:
  // A source under the next grant. Ends `use_peers_` when there is no more to ask for.
  std::optional<Source> TryGrant(const RequestContext& context) {
    v1::RequestReplicaTransportResponse response;
    const absl::Status asked = AskForGrant(context, &response);
    if (!asked.ok()) {
      Tried("global store", asked);
      use_peers_ = false;
      return std::nullopt;
    }
    origin_candidates_ = OwnOrigins(response);
    if (!response.has_grant()) {
      use_peers_ = false;
      no_source_reason_ = response.no_source_reason();
      return std::nullopt;
    }
    grant_ = std::move(*response.mutable_grant());
    excluded_.push_back(grant_->replica().replica_id());
    return OpenGrant(context);
  }

  std::optional<Source> OpenGrant(const RequestContext& context) {
    const Cancellation revoked = access_.running->Add(grant_->transport_id());
    GrantOpening opening;
    absl::StatusOr<Source> source =
        OpenGrantedSource(context, access_, *grant_, *request_.manifest, request_.lane, revoked, &opening);
    pull_opened_ = opening.pull_opened;
    for (SourceFailure& lane : opening.unopened) {
      unopened_.push_back(std::move(lane));
    }
    if (!source.ok()) {
      LOG(WARNING) << "Source " << grant_->source().name() << " of " << request_.manifest->id()
                   << " could not be opened: " << source.status();
      const absl::Status status = source.status();
      Tried(grant_->source().name(), status);
      EndGrant(status, false);
      return std::nullopt;
    }
    return *std::move(source);
  }

  absl::Status AskForGrant(const RequestContext& context, v1::RequestReplicaTransportResponse* response) {
    v1::RequestReplicaTransportRequest request;
    access_.link->SetIdentity(request.mutable_node());
    request.set_artifact_id(request_.manifest->id());
    SetLocation(request_.destination, access_.devices, request.mutable_destination());
    request.mutable_excluded_replicas()->Assign(excluded_.begin(), excluded_.end());
    request.mutable_corrupt_replicas()->Assign(corrupt_.begin(), corrupt_.end());
    if (context.deadline != absl::InfiniteFuture()) {
      *request.mutable_timeout() = rpc::ToProto(TimeLeft(context.deadline));
    }
    request.set_required_lane(request_.lane);
    absl::Status status = Request(context, request, response);
    if (absl::IsNotFound(status) || absl::IsAborted(status)) {
      // The artifact is unknown, or this node is: the global store may have been restarted since the last
      // heartbeat.
      TC_RETURN_IF_ERROR(access_.link->CheckIn(std::min(context.deadline, SteadyNow() + kCheckInTimeout)));
      status = Request(context, request, response);
    }
    return status;
  }

  // Each grant is a mutation of its own, though all are asked for on behalf of one request.
  absl::Status Request(const RequestContext& context, const v1::RequestReplicaTransportRequest& request,
                       v1::RequestReplicaTransportResponse* response) {
    RequestContext call = context.Child();
    call.request_id = NewUuid();
    return access_.global_store->RequestReplicaTransport(call, request, response);
  }

  void TakeOrigins(const RequestContext& context) {
    if (request_.lane == kDiskLane) {
      // No grant was asked for, yet the origins are the global store's to know.
      v1::RequestReplicaTransportResponse response;
      if (const absl::Status asked = AskForGrant(context, &response); !asked.ok()) {
        Tried("global store", asked);
      }
      origin_candidates_ = OwnOrigins(response);
    }
    origins_.swap(origin_candidates_);
  }

  std::deque<v1::Origin> OwnOrigins(const v1::RequestReplicaTransportResponse& response) const {
    std::deque<v1::Origin> own(response.origins().begin(), response.origins().end());
    std::erase_if(own,
                  [this](const v1::Origin& origin) { return origin.node_id() != access_.link->node_id(); });
    return own;
  }

  void NoteFailure(const SourceFailure& failure) {
    Tried(absl::StrCat(failure.source.name, " (", failure.source.lane, ")"), failure.status);
    if (failure.corrupt) {
      ++corrupt_sources_;
      if (grant_.has_value()) {
        corrupt_.push_back(grant_->replica().replica_id());
      }
    }
    EndGrant(failure.status, failure.corrupt);
  }

  // Completes the running grant, if there is one, and closes what it opened; nobody waits for either.
  void EndGrant(const absl::Status& status, bool corrupt) {
    if (!grant_.has_value()) {
      return;
    }
    const v1::TransportGrant grant = *std::exchange(grant_, std::nullopt);
    access_.running->Remove(grant.transport_id());
    v1::CompleteReplicaTransportRequest complete;
    access_.link->SetIdentity(complete.mutable_node());
    complete.set_transport_id(grant.transport_id());
    complete.set_outcome(status.ok()                 ? v1::TRANSPORT_OUTCOME_SUCCEEDED
                         : absl::IsCancelled(status) ? v1::TRANSPORT_OUTCOME_CANCELLED
                                                     : v1::TRANSPORT_OUTCOME_FAILED);
    complete.set_error(std::string(status.message()));
    complete.set_source_corrupt(corrupt);
    if (status.ok()) {
      complete.set_bytes(grant.replica().image_bytes());
    }
    const bool close = std::exchange(pull_opened_, false);
    access_.errands->Run([&access = access_, complete, close, address = grant.source().grpc_address()] {
      if (close) {
        v1::ClosePullRequest request;
        request.set_transport_id(complete.transport_id());
        v1::ClosePullResponse ignored;
        // A source that cannot be told ends it with the grant.
        access.peers->ClosePull(RequestContext::Background(kErrandTimeout), address, request, &ignored)
            .IgnoreError();
      }
      const absl::Status told =
          access.global_store->CompleteReplicaTransport(RequestContext::Background(kErrandTimeout), complete);
      LOG_IF(WARNING, !told.ok()) << "The end of transport " << complete.transport_id()
                                  << " was not told; its grant expires: " << told;
    });
  }

  void Tried(const std::string& what, const absl::Status& status) {
    tried_.push_back(absl::StrCat(what, ": ", status.message()));
    transient_ |= absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsAborted(status);
  }

  absl::Status NothingLeft() const {
    const std::string& id = request_.manifest->id();
    const std::string by = request_.lane.empty() ? "" : absl::StrCat(" over the lane ", request_.lane);
    const std::string why = no_source_reason_.empty() ? "" : absl::StrCat(": ", no_source_reason_);
    if (tried_.empty()) {
      return absl::NotFoundError(absl::StrCat("there is no source of ", id, by, why));
    }
    const std::string message =
        absl::StrCat("no source of ", id, " is left", by, why, "; tried ", absl::StrJoin(tried_, "; "));
    if (corrupt_sources_ > 0 && corrupt_sources_ == static_cast<int>(tried_.size())) {
      return absl::DataLossError(message);
    }
    // What may be otherwise in a moment is worth another request; a file that changed is not.
    return transient_ ? absl::UnavailableError(message) : absl::NotFoundError(message);
  }

  const PeerAccess& access_;
  const PeerSourceRequest request_;
  bool use_peers_ = true;
  bool use_origins_ = true;
  std::deque<v1::Origin> origin_candidates_;  // on this node, as the last answer named them
  std::deque<v1::Origin> origins_;            // still to be tried
  std::optional<v1::TransportGrant> grant_;
  bool pull_opened_ = false;
  std::vector<std::string> excluded_;
  std::vector<std::string> corrupt_;
  std::vector<std::string> tried_;
  std::vector<SourceFailure> unopened_;
  std::string no_source_reason_;  // the global store's words
  int corrupt_sources_ = 0;
  bool transient_ = false;  // one of them at least failed for a reason that passes
};

}  // namespace

std::shared_ptr<SourceProvider> MakePeerSourceProvider(const PeerAccess* access, PeerSourceRequest request) {
  return std::make_shared<PeerSourceProvider>(access, std::move(request));
}

}  // namespace tensorcast::daemon
