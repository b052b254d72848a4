#include "daemon/global_store_link/global_store_client.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "daemon/global_store_link/global_store_channel.h"
#include "rpc/call.h"
#include "rpc/pieces.h"
#include "rpc/retry.h"
#include "rpc/retry_after.h"

namespace tensorcast::daemon {
namespace {

using Stub = GlobalStoreChannel::Stub;

// A call that was given less may end without an answer though the global store is well.
constexpr absl::Duration kLongEnoughToAnswer = absl::Milliseconds(200);

class GrpcGlobalStoreClient : public GlobalStoreClient {
 public:
  explicit GrpcGlobalStoreClient(std::shared_ptr<GlobalStoreChannel> channel)
      : channel_(std::move(channel)),
        address_(channel_->address()),
        // A store that stands by needs longer to take over than a single one to restart.
        short_absence_(absl::StrContains(address_, ',') ? kTakeOver : kShortAbsence) {}

  absl::StatusOr<v1::RegisterNodeResponse> RegisterNode(const RequestContext& context,
                                                        const v1::RegisterNodeRequest& request) override {
    return LookingAgain(Call(&Stub::RegisterNode, context, request, Once()));
  }

  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const RequestContext& context,
                                                  const v1::HeartbeatRequest& request) override {
    return LookingAgain(Call(&Stub::Heartbeat, context, request, Once()));
  }

  absl::StatusOr<v1::ReconcileInventoryResponse> ReconcileInventory(
      const RequestContext& context, const std::vector<v1::ReconcileInventoryRequest>& messages) override {
    return CallStreaming(
        &Stub::ReconcileInventory, context, messages.size(), [&](size_t index) { return messages[index]; },
        Once());
  }

  absl::StatusOr<v1::UpdateReplicasResponse> UpdateReplicas(
      const RequestContext& context, const v1::UpdateReplicasRequest& request) override {
    return Call(&Stub::UpdateReplicas, context, request, Once());
  }

  absl::StatusOr<v1::RequestEvictionResponse> RequestEviction(
      const RequestContext& context, const v1::RequestEvictionRequest& request) override {
    return Call(&Stub::RequestEviction, context, request, Once());
  }

  absl::Status DrainNode(const RequestContext& context, const v1::DrainNodeRequest& request) override {
    return Call(&Stub::DrainNode, context, request, Once()).status();
  }

  absl::StatusOr<v1::PublishArtifactResponse> PublishArtifact(const RequestContext& context,
                                                              const Manifest& manifest,
                                                              const v1::PublishArtifactRequest& first,
                                                              const std::string& asking) override {
    return Publish(context, manifest.bytes(), std::nullopt, first, asking);
  }

  absl::StatusOr<v1::PublishArtifactResponse> PublishWithDifference(const RequestContext& context,
                                                                    const Manifest& manifest,
                                                                    const Manifest& difference,
                                                                    const v1::PublishArtifactRequest& first,
                                                                    const std::string& asking) override {
    return Publish(context, manifest.bytes(), difference.bytes(), first, asking);
  }

  absl::StatusOr<FoundDifferences> FindDifferences(const RequestContext& context,
                                                   std::string_view artifact_id,
                                                   const std::vector<std::string>& held,
                                                   std::string* manifest) override {
    v1::DescribeArtifactRequest request;
    request.set_artifact_id(std::string(artifact_id));
    request.set_manifest(manifest != nullptr);
    request.mutable_held_artifacts()->Assign(held.begin(), held.end());
    FoundDifferences found;
    rpc::PieceJoiner joiner;
    Timeout timeout = Timeout::kMeansSilence;
    const SteadyTime began = SteadyNow();
    const absl::Status described = rpc::CallServerStream(
        *channel_->stub(), &Stub::DescribeArtifact, UnlessAway(context), request,
        [&](v1::DescribeArtifactResponse&& response) {
          // A part of the answer came, so the store is there, however long the rest takes.
          timeout = Timeout::kMeansNothing;
          std::ranges::move(*response.mutable_differences(), std::back_inserter(found.path));
          std::ranges::move(*response.mutable_difference_manifests(), std::back_inserter(found.manifests));
          return joiner.Add(response.manifest_piece());
        },
        Patient());
    TC_RETURN_IF_ERROR(Noted(described, began, timeout));
    if (manifest != nullptr) *manifest = joiner.Take();
    return found;
  }

  absl::StatusOr<std::string> FetchManifest(const RequestContext& context,
                                            std::string_view artifact_id) override {
    v1::DescribeArtifactRequest request;
    request.set_artifact_id(std::string(artifact_id));
    request.set_manifest(true);
    rpc::PieceJoiner joiner;
    Timeout timeout = Timeout::kMeansSilence;
    const SteadyTime began = SteadyNow();
    const absl::Status fetched = rpc::CallServerStream(
        *channel_->stub(), &Stub::DescribeArtifact, UnlessAway(context), request,
        [&](v1::DescribeArtifactResponse&& response) {
          timeout = Timeout::kMeansNothing;
          return joiner.Add(response.manifest_piece());
        },
        Patient());
    TC_RETURN_IF_ERROR(Noted(fetched, began, timeout));
    return joiner.Take();
  }

  absl::StatusOr<Copies> FindCopies(const RequestContext& context, std::string_view artifact_id) override {
    v1::DescribeArtifactRequest request;
    request.set_artifact_id(std::string(artifact_id));
    Copies found;
    Timeout timeout = Timeout::kMeansSilence;
    const SteadyTime began = SteadyNow();
    const absl::Status described = rpc::CallServerStream(
        *channel_->stub(), &Stub::DescribeArtifact, UnlessAway(context), request,
        [&found, &timeout](v1::DescribeArtifactResponse&& response) {
          timeout = Timeout::kMeansNothing;
          const v1::Artifact& artifact = response.artifact();
          found.has_origin |= artifact.origins_size() > 0;
          for (const v1::Replica& replica : artifact.replicas()) {
            if (replica.state() == v1::REPLICA_STATE_READY) found.replicas.push_back(replica);
          }
          return absl::OkStatus();
        },
        Patient());
    TC_RETURN_IF_ERROR(Noted(described, began, timeout));
    return found;
  }

  absl::StatusOr<v1::Key> ResolveKey(const RequestContext& context, const std::string& key,
                                     std::string* manifest) override {
    if (manifest != nullptr) return DescribeKey(context, key, *manifest);
    v1::ResolveKeyRequest request;
    request.set_key(key);
    TC_ASSIGN_OR_RETURN(v1::ResolveKeyResponse response, Call(&Stub::ResolveKey, context, request, Once()));
    return std::move(*response.mutable_key());
  }

  absl::StatusOr<std::vector<v1::Node>> FindNodes(const RequestContext& context,
                                                  const std::vector<std::string>& names) override {
    v1::GetClusterStatusRequest request;
    request.mutable_node_names()->Assign(names.begin(), names.end());
    std::vector<v1::Node> found;
    do {
      TC_ASSIGN_OR_RETURN(const v1::GetClusterStatusResponse page,
                          Call(&Stub::GetClusterStatus, context, request, Once()));
      found.insert(found.end(), page.nodes().begin(), page.nodes().end());
      request.set_page_token(page.next_page_token());
    } while (!request.page_token().empty());
    return found;
  }

  absl::StatusOr<v1::RequestReplicaTransportResponse> RequestReplicaTransport(
      const RequestContext& context, const v1::RequestReplicaTransportRequest& request) override {
    // It may look at the files of an import first, on other nodes. The time of one that was away before is
    // too short for that, and says that it still is.
    const Timeout timeout = IsAway() ? Timeout::kMeansSilence : Timeout::kMeansNothing;
    return Call(&Stub::RequestReplicaTransport, UnlessAway(context), request, Patient(), timeout);
  }

  absl::Status CompleteReplicaTransport(const RequestContext& context,
                                        const v1::CompleteReplicaTransportRequest& request) override {
    return Call(&Stub::CompleteReplicaTransport, context, request, Patient()).status();
  }

  absl::StatusOr<v1::JoinBroadcastResponse> JoinBroadcast(const RequestContext& context,
                                                          const v1::JoinBroadcastRequest& request) override {
    return Call(&Stub::JoinBroadcast, context, request, Once());
  }

  absl::Duration away_for() const override {
    // `away_since_` is the infinite future while the store answers, which gives zero.
    const SteadyTime now = SteadyNow();
    absl::MutexLock lock(&mutex_);
    return std::max(now - away_since_, absl::ZeroDuration());
  }

  // The outcome of every call passes here, so that all threads share one view of the store: `away_since_`
  // begins with the first call that finds no store, and ends with the next answer of any kind, an error
  // included.
  absl::Status Noted(absl::Status status, SteadyTime began, Timeout timeout) override {
    // The global store is there, and said when it has time: its word goes on to the caller as it is.
    if (rpc::RetryAfterOf(status).has_value()) {
      NoteAnswered();
      return status;
    }
    const bool silent = timeout == Timeout::kMeansSilence && absl::IsDeadlineExceeded(status) &&
                        SteadyNow() - began >= kLongEnoughToAnswer;
    const bool unreachable = absl::IsUnavailable(status) || silent;
    if (!unreachable) {
      // A cancelled call, or one with a deadline that says nothing, proves nothing.
      if (!absl::IsCancelled(status) && !absl::IsDeadlineExceeded(status)) NoteAnswered();
      return status;
    }
    {
      absl::MutexLock lock(&mutex_);
      // Another call may have been answered since this one began.
      away_since_ = std::min(away_since_, silent ? std::max(began, answered_) : SteadyNow());
    }
    const std::string store = absl::StrCat("the global store at ", address_);
    absl::Status error(
        absl::StatusCode::kUnavailable,
        absl::StrCat(store, silent ? " does not answer: " : " cannot be reached: ", status.message(),
                     "; start the global store, or check the network to it"));
    // The details of the error go on to the caller; only code and text change.
    status.ForEachPayload(
        [&](std::string_view type, const absl::Cord& payload) { error.SetPayload(type, payload); });
    return away_for() < short_absence_ ? error : rpc::WithoutRetry(error);
  }

  rpc::EpochFence& fence() override { return fence_; }

 private:
  // The pieces of the artifact's manifest, then those of the difference's, where there is one.
  absl::StatusOr<v1::PublishArtifactResponse> Publish(const RequestContext& context,
                                                      std::string_view manifest,
                                                      std::optional<std::string_view> difference,
                                                      const v1::PublishArtifactRequest& first,
                                                      const std::string& asking) {
    const size_t pieces = rpc::PieceCount(manifest.size());
    const size_t of_difference = difference.has_value() ? rpc::PieceCount(difference->size()) : 0;
    const auto message = [&](size_t index) {
      v1::PublishArtifactRequest request;
      if (index == 0) request = first;
      if (index < pieces) {
        request.set_manifest_piece(std::string(rpc::Piece(manifest, index)));
      } else {
        request.set_difference_piece(std::string(rpc::Piece(*difference, index - pieces)));
      }
      return request;
    };
    rpc::CallOptions options = Patient();
    options.on_behalf_of = asking;
    return CallStreaming(&Stub::PublishArtifact, context, pieces + of_difference, message, options);
  }

  absl::StatusOr<v1::Key> DescribeKey(const RequestContext& context, const std::string& key,
                                      std::string& manifest) {
    v1::DescribeArtifactRequest request;
    request.set_key(key);
    request.set_manifest(true);
    std::optional<v1::Key> named;
    rpc::PieceJoiner joiner;
    const SteadyTime began = SteadyNow();
    const absl::Status described = rpc::CallServerStream(
        *channel_->stub(), &Stub::DescribeArtifact, context, request,
        [&](v1::DescribeArtifactResponse&& response) {
          if (response.has_key()) named = std::move(*response.mutable_key());
          return joiner.Add(response.manifest_piece());
        },
        Once());
    if (named.has_value()) {
      // The key is the answer, also where the deadline, meant for a short one, cut its manifest off.
      NoteAnswered();
      if (described.ok()) manifest = joiner.Take();
      return *std::move(named);
    }
    TC_RETURN_IF_ERROR(Noted(described, began, Timeout::kMeansSilence));
    return absl::InternalError(
        absl::StrCat("resolve key ", key, ": the global store at ", address_,
                     " ended the stream without a key; report this defect of the global store"));
  }

  void NoteAnswered() {
    absl::MutexLock lock(&mutex_);
    away_since_ = SteadyTime::InfiniteFuture();
    answered_ = SteadyNow();
  }

  bool IsAway() const { return away_for() >= short_absence_; }

  // What a client waits for gets little time when the global store was silent until now.
  RequestContext UnlessAway(const RequestContext& context) const {
    RequestContext call = context;
    if (IsAway()) call.deadline = std::min(call.deadline, SteadyNow() + short_absence_);
    return call;
  }

  // A global store that is away for long may have moved. Runs on the link's own thread, which is idle then.
  template <class Response>
  absl::StatusOr<Response> LookingAgain(absl::StatusOr<Response> answer) {
    if (!answer.ok() && IsAway()) channel_->LookUpAgain();
    return answer;
  }

  rpc::CallOptions TriedFor(absl::Duration retry_for) {
    return {.retry_for = retry_for, .what = "call the global store", .fence = &fence_};
  }
  // The link and what runs in the background have retries of their own, as have clients.
  rpc::CallOptions Once() { return TriedFor(absl::ZeroDuration()); }
  // Requests on behalf of a client ride out a short absence.
  rpc::CallOptions Patient() { return TriedFor(std::max(short_absence_ - away_for(), absl::ZeroDuration())); }

  template <class Request, class Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                const RequestContext& context, const std::type_identity_t<Request>& request,
                                const rpc::CallOptions& options, Timeout timeout = Timeout::kMeansSilence) {
    const SteadyTime began = SteadyNow();
    absl::StatusOr<Response> response = rpc::CallUnary(*channel_->stub(), method, context, request, options);
    TC_RETURN_IF_ERROR(Noted(response.status(), began, timeout));
    return response;
  }

  template <class Request, class Response>
  absl::StatusOr<Response> CallStreaming(
      std::unique_ptr<grpc::ClientWriter<Request>> (Stub::*method)(grpc::ClientContext*, Response*),
      const RequestContext& context, size_t count, rpc::Callback<Request(size_t)> make_request,
      const rpc::CallOptions& options) {
    const SteadyTime began = SteadyNow();
    absl::StatusOr<Response> response =
        rpc::CallClientStream(*channel_->stub(), method, context, count, make_request, options);
    TC_RETURN_IF_ERROR(Noted(response.status(), began, Timeout::kMeansSilence));
    return response;
  }

  const std::shared_ptr<GlobalStoreChannel> channel_;
  const std::string address_;
  const absl::Duration short_absence_;
  rpc::EpochFence fence_;
  mutable absl::Mutex mutex_;
  SteadyTime away_since_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfiniteFuture();  // that: it answers
  SteadyTime answered_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();      // a call, the last time
};

}  // namespace

std::unique_ptr<GlobalStoreClient> MakeGlobalStoreClient(std::shared_ptr<GlobalStoreChannel> channel) {
  return std::make_unique<GrpcGlobalStoreClient>(std::move(channel));
}

}  // namespace tensorcast::daemon
