// The calls of the GlobalStore service as plain functions of messages: convert, call the coordinator, convert
// back. Private to this folder. Thread-safe; may block (on the metadata store).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "base/status.h"
#include "global_store/coordinator/coordinator.h"
#include "global_store/service/global_store_service.h"
#include "proto/global_store.pb.h"
#include "rpc/executor.h"
#include "rpc/handlers.h"
#include "rpc/pieces.h"
#include "rpc/stream_writer.h"

namespace tensorcast::global_store {

class Handlers {
 public:
  Handlers(Coordinator* coordinator, const ServiceOptions& options)
      : coordinator_(*coordinator), options_(options) {}
  // Cancels the running reads of origins.
  ~Handlers() { cancel_readings_.Cancel(); }

  // handlers_nodes.cc
  // `peer`: see CheckSpeaksFor (speaker.h). A certificate's name is the node's name, and owns the node id
  // from the first registration on. PERMISSION_DENIED if another name owns the node id.
  absl::StatusOr<v1::RegisterNodeResponse> RegisterNode(std::string_view peer,
                                                        const v1::RegisterNodeRequest& request);
  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const RequestContext& context,
                                                  const v1::HeartbeatRequest& request);
  absl::StatusOr<v1::UpdateReplicasResponse> UpdateReplicas(const RequestContext& context,
                                                            const v1::UpdateReplicasRequest& request);
  absl::StatusOr<v1::RequestEvictionResponse> RequestEviction(const RequestContext& context,
                                                              const v1::RequestEvictionRequest& request);
  absl::StatusOr<v1::DrainNodeResponse> DrainNode(const RequestContext& context,
                                                  const v1::DrainNodeRequest& request);
  absl::StatusOr<v1::ForgetNodeResponse> ForgetNode(const RequestContext& context,
                                                    const v1::ForgetNodeRequest& request);
  absl::StatusOr<v1::GetClusterStatusResponse> GetClusterStatus(const RequestContext& context,
                                                                const v1::GetClusterStatusRequest& request);

  // Whether this node may stream to this store. Does not block.
  absl::Status CheckNode(const v1::NodeIdentity& node);

  // Collects the messages of an inventory. Thread-compatible.
  struct Inventory {
    std::optional<NodeIdentity> node;
    uint64_t sequence = 0;
    std::vector<ReplicaInfo> replicas;
    absl::Status Add(const v1::ReconcileInventoryRequest& message);
  };
  absl::StatusOr<v1::ReconcileInventoryResponse> ReconcileInventory(const Inventory& inventory);

  // handlers_artifacts.cc
  // Collects the messages of a publication. Thread-compatible.
  struct Publication {
    std::optional<v1::PublishArtifactRequest> first;  // without its pieces
    rpc::PieceJoiner manifest;
    rpc::PieceJoiner difference;  // empty: no difference
    absl::Status Add(v1::PublishArtifactRequest message);
  };
  absl::StatusOr<v1::PublishArtifactResponse> PublishArtifact(const RequestContext& context,
                                                              const Publication& publication);
  absl::Status DescribeArtifact(const v1::DescribeArtifactRequest& request,
                                rpc::StreamWriter<v1::DescribeArtifactResponse>& writer);
  absl::StatusOr<v1::ListArtifactsResponse> ListArtifacts(const RequestContext& context,
                                                          const v1::ListArtifactsRequest& request);
  absl::StatusOr<v1::DeleteArtifactResponse> DeleteArtifact(const RequestContext& context,
                                                            const v1::DeleteArtifactRequest& request);

  // handlers_keys.cc
  absl::StatusOr<v1::BindKeyResponse> BindKey(const RequestContext& context,
                                              const v1::BindKeyRequest& request);
  absl::StatusOr<v1::ResolveKeyResponse> ResolveKey(const RequestContext& context,
                                                    const v1::ResolveKeyRequest& request);
  absl::StatusOr<v1::ListKeysResponse> ListKeys(const RequestContext& context,
                                                const v1::ListKeysRequest& request);
  absl::StatusOr<v1::DeleteKeyResponse> DeleteKey(const RequestContext& context,
                                                  const v1::DeleteKeyRequest& request);
  // Returns at once; the stream ends when the call is cancelled or the watches are closed.
  void WatchKeys(const RequestContext& context, const v1::WatchKeysRequest& request,
                 const std::shared_ptr<rpc::StreamWriter<v1::WatchKeysResponse>>& writer,
                 const rpc::Finisher& finisher);

  // handlers_transfers.cc
  absl::StatusOr<v1::RequestReplicaTransportResponse> RequestReplicaTransport(
      const RequestContext& context, const v1::RequestReplicaTransportRequest& request);
  absl::StatusOr<v1::CompleteReplicaTransportResponse> CompleteReplicaTransport(
      const RequestContext& context, const v1::CompleteReplicaTransportRequest& request);

  // handlers_rollouts.cc
  absl::StatusOr<v1::ExplainRolloutResponse> ExplainRollout(const RequestContext& context,
                                                            const v1::ExplainRolloutRequest& request);

  // handlers_tasks.cc
  // `asking` names the requester, as rpc::Caller::asking; empty: unknown.
  absl::StatusOr<v1::ReplicateArtifactResponse> ReplicateArtifact(
      const RequestContext& context, std::string_view asking, const v1::ReplicateArtifactRequest& request);
  absl::StatusOr<v1::ListReplicationTasksResponse> ListReplicationTasks(
      const RequestContext& context, const v1::ListReplicationTasksRequest& request);
  // See WatchKeys.
  void WatchReplicationTasks(
      const RequestContext& context, const v1::WatchReplicationTasksRequest& request,
      const std::shared_ptr<rpc::StreamWriter<v1::WatchReplicationTasksResponse>>& writer,
      const rpc::Finisher& finisher);
  absl::StatusOr<v1::CancelReplicationTasksResponse> CancelReplicationTasks(
      const RequestContext& context, const v1::CancelReplicationTasksRequest& request);
  absl::StatusOr<v1::JoinBroadcastResponse> JoinBroadcast(const RequestContext& context,
                                                          const v1::JoinBroadcastRequest& request);

 private:
  // The call ends when the client cancels, or when the store shuts down.
  template <class Watcher>
  void RunWatch(const RequestContext& context, const rpc::Finisher& finisher,
                std::shared_ptr<Watcher> watcher,
                uint64_t (Coordinator::*watch)(std::shared_ptr<const Watcher>),
                void (Coordinator::*unwatch)(uint64_t)) {
    // The watcher owns the cancellation's registration.
    auto cancelled = std::make_shared<Cancellation::Registration>();
    watcher->on_close = [finisher, cancelled](const absl::Status& status) { finisher.Finish(status); };
    const uint64_t id = (coordinator_.*watch)(std::move(watcher));
    *cancelled = context.cancellation.OnCancel([this, id, finisher, unwatch] {
      (coordinator_.*unwatch)(id);
      finisher.Finish(absl::CancelledError("watch: the caller cancelled the watch; watch again"));
    });
  }

  // The plan of a durable change, and the response to its caller.
  template <class Response>
  struct Plan {
    Change change;
    Response response;
  };

  // Plans and makes a durable change once for all repetitions of the request, which get the same response.
  // `content` distinguishes requests with the same id.
  template <class Response>
  absl::StatusOr<Response> Mutate(
      const RequestContext& context, std::string_view method, std::string_view content,
      absl::FunctionRef<absl::StatusOr<Plan<Response>>(const Directory&, absl::Time wall_now)> prepare) {
    TC_ASSIGN_OR_RETURN(
        const std::string answer,
        coordinator_.Mutate(RequestKey(context.request_id, method, content),
                            [&](const Directory& directory, absl::Time wall_now) -> absl::StatusOr<Change> {
                              TC_ASSIGN_OR_RETURN(Plan<Response> plan, prepare(directory, wall_now));
                              plan.change.response = plan.response.SerializeAsString();
                              return std::move(plan.change);
                            }));
    Response response;
    if (response.ParseFromString(answer)) return response;
    return absl::DataLossError(
        "repeat a call: the recorded answer to the request id is damaged; use a new request id");
  }

  // handlers_trust.cc
  // Decides an eviction. Asks daemons for the proofs and the checks of origins that the decision needs.
  absl::StatusOr<EvictionDecision> DecideEviction(const RequestContext& context, const NodeIdentity& node,
                                                  const std::string& replica_id);
  // Asks nodes to digest their replicas that were accused since the last call. Returns at once.
  void DigestAccused();
  void DigestOne(const CopyToProve& accused);
  // Asks the nodes of these origins to check them, and records the findings. True: an origin is intact.
  bool CheckOrigins(const RequestContext& context, const std::vector<OriginToCheck>& origins);
  // Calls the coordinator's RequestGrant. Checks the origins that decide the answer, and starts the reading
  // of an origin if there is no other source.
  absl::StatusOr<GrantOffer> RequestGrant(const RequestContext& context, const std::string& key,
                                          const GrantRequest& wanted);
  void NoteReading(const OriginToCheck& origin, const absl::Status& read);
  // Asks the node of an intact origin to make a replica of it, and records the outcome. Returns at once.
  void StartReading(const RequestContext& context, const OriginToCheck& origin);
  absl::Status ReadOrigin(const RequestContext& context, const OriginToCheck& origin);

  // handlers_keys.cc
  absl::StatusOr<v1::Key> FindKey(const std::string& name);

  // An idempotency key from request id, method and content, because a client may use one id for several
  // calls. Empty when the call has no id.
  static std::string RequestKey(std::string_view request_id, std::string_view method,
                                std::string_view content);

  Coordinator& coordinator_;
  const ServiceOptions options_;
  Cancellation cancel_readings_;
  // For reads of origins, which must not starve the service's own executor. Declared last, because its tasks
  // use the other members.
  rpc::Executor readings_;
};

}  // namespace tensorcast::global_store
