// What each call of the GlobalStore service does, as plain functions of messages: convert, ask the
// coordinator, convert back. Private to this folder. Thread-safe; may block (on the metadata store).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/request_context.h"
#include "global_store/service/coordinator.h"
#include "global_store/service/global_store_service.h"
#include "global_store/service/replicator.h"
#include "proto/global_store.pb.h"
#include "rpc/handlers.h"
#include "rpc/pieces.h"
#include "rpc/stream_writer.h"

namespace tensorcast::global_store {

class Handlers {
 public:
  Handlers(Coordinator* coordinator, const ServiceOptions& options)
      : coordinator_(*coordinator), options_(options) {}
  // Cancels the readings of origins that are under way.
  ~Handlers() { readings_.Cancel(); }

  // handlers_nodes.cc
  absl::Status RegisterNode(const RequestContext& context, const v1::RegisterNodeRequest& request,
                            v1::RegisterNodeResponse& response);
  absl::Status Heartbeat(const RequestContext& context, const v1::HeartbeatRequest& request,
                         v1::HeartbeatResponse& response);
  absl::Status UpdateReplicas(const RequestContext& context, const v1::UpdateReplicasRequest& request,
                              v1::UpdateReplicasResponse& response);
  absl::Status RequestEviction(const RequestContext& context, const v1::RequestEvictionRequest& request,
                               v1::RequestEvictionResponse& response);
  absl::Status DrainNode(const RequestContext& context, const v1::DrainNodeRequest& request,
                         v1::DrainNodeResponse& response);
  absl::Status GetClusterStatus(const RequestContext& context, const v1::GetClusterStatusRequest& request,
                                v1::GetClusterStatusResponse& response);

  // Whether this node may stream something here. Asked before what it streams is kept; does not block.
  absl::Status CheckNode(const v1::NodeIdentity& node);

  // An inventory as it arrives. Thread-compatible.
  struct Inventory {
    std::optional<NodeIdentity> node;
    uint64_t sequence = 0;
    std::vector<ReplicaFacts> replicas;
    absl::Status Add(const v1::ReconcileInventoryRequest& message);
  };
  absl::Status ReconcileInventory(const Inventory& inventory, v1::ReconcileInventoryResponse& response);

  // handlers_artifacts.cc
  // A publication as it arrives. Thread-compatible.
  struct Publication {
    std::optional<v1::PublishArtifactRequest> first;  // without its piece
    rpc::PieceJoiner manifest;
    absl::Status Add(v1::PublishArtifactRequest message);
  };
  absl::Status PublishArtifact(const RequestContext& context, const Publication& publication,
                               v1::PublishArtifactResponse& response);
  absl::Status DescribeArtifact(const v1::DescribeArtifactRequest& request,
                                rpc::StreamWriter<v1::DescribeArtifactResponse>& writer);
  absl::Status ListArtifacts(const RequestContext& context, const v1::ListArtifactsRequest& request,
                             v1::ListArtifactsResponse& response);
  absl::Status DeleteArtifact(const RequestContext& context, const v1::DeleteArtifactRequest& request,
                              v1::DeleteArtifactResponse& response);

  // handlers_keys.cc
  absl::Status BindKey(const RequestContext& context, const v1::BindKeyRequest& request,
                       v1::BindKeyResponse& response);
  absl::Status ResolveKey(const RequestContext& context, const v1::ResolveKeyRequest& request,
                          v1::ResolveKeyResponse& response);
  absl::Status ListKeys(const RequestContext& context, const v1::ListKeysRequest& request,
                        v1::ListKeysResponse& response);
  absl::Status DeleteKey(const RequestContext& context, const v1::DeleteKeyRequest& request,
                         v1::DeleteKeyResponse& response);
  // Returns at once; the stream ends when the call is cancelled or the watches are closed.
  void WatchKeys(const RequestContext& context, const v1::WatchKeysRequest& request,
                 const std::shared_ptr<rpc::StreamWriter<v1::WatchKeysResponse>>& writer,
                 const rpc::Finisher& finisher);

  // handlers_transfers.cc
  absl::Status RequestReplicaTransport(const RequestContext& context,
                                       const v1::RequestReplicaTransportRequest& request,
                                       v1::RequestReplicaTransportResponse& response);
  absl::Status CompleteReplicaTransport(const RequestContext& context,
                                        const v1::CompleteReplicaTransportRequest& request,
                                        v1::CompleteReplicaTransportResponse& response);
  absl::Status ReplicateArtifact(const RequestContext& context, const v1::ReplicateArtifactRequest& request,
                                 v1::ReplicateArtifactResponse& response);

 private:
  // A durable change whose plan fills in `response`, once for all repetitions of the request. `content` is
  // what tells requests of one id apart.
  template <class Response>
  absl::Status Mutate(
      const RequestContext& context, std::string_view method, std::string_view content, Response& response,
      absl::FunctionRef<absl::StatusOr<Change>(const Directory&, absl::Time wall_now, Response&)> prepare) {
    absl::StatusOr<std::string> answer =
        coordinator_.Mutate(RequestKey(context.request_id, method, content),
                            [&](const Directory& directory, absl::Time wall_now) -> absl::StatusOr<Change> {
                              Response planned;
                              absl::StatusOr<Change> change = prepare(directory, wall_now, planned);
                              if (change.ok()) change->response = planned.SerializeAsString();
                              return change;
                            });
    if (!answer.ok()) return answer.status();
    if (response.ParseFromString(*answer)) return absl::OkStatus();
    return absl::DataLossError("the metadata store has a damaged answer for this request id: use a new one");
  }

  // Asks the nodes of these origins about them, and notes what they found. True when one is intact.
  bool CheckOrigins(const RequestContext& context, const std::vector<OriginToCheck>& origins);
  // As the coordinator's; asks for origins on which the answer turns, and has one read where nothing else
  // helps.
  absl::StatusOr<GrantOffer> RequestGrant(const RequestContext& context, const std::string& key,
                                          const GrantRequest& transport);
  void NoteReading(const OriginToCheck& origin, const absl::Status& read);
  // Has the node of an intact origin make a replica of it, and notes how that went. Returns at once.
  void StartReading(const RequestContext& context, const OriginToCheck& origin);
  absl::Status ReadOrigin(const RequestContext& context, const OriginToCheck& origin);

  // Stands for a request id together with what it asks: one id may go with several calls of one job. Empty
  // when the call has none.
  static std::string RequestKey(std::string_view request_id, std::string_view method,
                                std::string_view content);

  Coordinator& coordinator_;
  const ServiceOptions options_;
  Cancellation readings_;
  Replicator replicator_;
};

}  // namespace tensorcast::global_store
