#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/status/status.h"
#include "global_store/service/convert.h"
#include "global_store/service/handlers.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/steady_time.h"
#include "rpc/convert/convert.h"
#include "rpc/grant_token/grant_token.h"

namespace tensorcast::global_store {
namespace {

absl::StatusOr<GrantEnd> EndOf(v1::TransportOutcome outcome) {
  switch (outcome) {
    case v1::TRANSPORT_OUTCOME_SUCCEEDED:
      return GrantEnd::kSucceeded;
    case v1::TRANSPORT_OUTCOME_FAILED:
      return GrantEnd::kFailed;
    case v1::TRANSPORT_OUTCOME_CANCELLED:
      return GrantEnd::kCancelled;
    default:
      return absl::InvalidArgumentError("a transport ends as succeeded, failed or cancelled: none was named");
  }
}

void ToProto(const GrantedTransport& granted, v1::TransportGrant* out) {
  const Grant& grant = granted.grant;
  out->set_transport_id(grant.transport_id);
  global_store::ToProto(granted.source, out->mutable_source());
  global_store::ToProto(granted.replica, out->mutable_replica());
  out->set_lane(grant.lane);
  *out->mutable_ttl() = rpc::ToProto(granted.ttl);
  out->set_token(rpc::SignGrant(granted.source_key, {.transport_id = grant.transport_id,
                                                     .replica_id = grant.replica_id,
                                                     .artifact_id = grant.artifact_id,
                                                     .receiver_node_id = grant.receiver_node,
                                                     .lane = grant.lane,
                                                     .expires = grant.token_expires}));
}

}  // namespace

absl::Status Handlers::RequestReplicaTransport(const RequestContext& context,
                                               const v1::RequestReplicaTransportRequest& request,
                                               v1::RequestReplicaTransportResponse& response) {
  TC_ASSIGN_OR_RETURN(const Location destination, rpc::FromProto(request.destination()));
  const TransportRequest transport{
      .receiver = FromProto(request.node()),
      .artifact_id = request.artifact_id(),
      .destination = destination,
      .excluded_replicas = {request.excluded_replicas().begin(), request.excluded_replicas().end()},
      .corrupt_replicas = {request.corrupt_replicas().begin(), request.corrupt_replicas().end()},
      .slow_replicas = {request.slow_replicas().begin(), request.slow_replicas().end()},
      .timeout = rpc::FromProto(request.timeout()),
      .required_lane = request.required_lane()};
  const std::string key =
      RequestKey(context.request_id, "RequestReplicaTransport", request.SerializeAsString());
  const absl::Time asked = SteadyNow();
  TC_ASSIGN_OR_RETURN(const TransportOffer offer, coordinator_.RequestTransport(key, transport));
  otel::metrics::kGlobalSelectionWaitSeconds.Record(absl::ToDoubleSeconds(SteadyNow() - asked),
                                                    {offer.granted.has_value()                  ? "granted"
                                                     : offer.retry_after > absl::ZeroDuration() ? "wait"
                                                                                                : "refused"});
  if (offer.granted.has_value()) ToProto(*offer.granted, response.mutable_grant());
  for (const Origin& origin : offer.origins) global_store::ToProto(origin, response.add_origins());
  response.set_no_source_reason(offer.no_source_reason);
  response.mutable_waiting_for()->Assign(offer.waiting_for.begin(), offer.waiting_for.end());
  if (offer.retry_after > absl::ZeroDuration()) {
    *response.mutable_retry_after() = rpc::ToProto(offer.retry_after);
  }
  return absl::OkStatus();
}

absl::Status Handlers::CompleteReplicaTransport(const RequestContext&,
                                                const v1::CompleteReplicaTransportRequest& request,
                                                v1::CompleteReplicaTransportResponse&) {
  TC_ASSIGN_OR_RETURN(const GrantEnd end, EndOf(request.outcome()));
  return coordinator_.WithDirectory([&](Directory& directory, absl::Time now) {
    return directory.CompleteTransport(FromProto(request.node()), request.transport_id(), end,
                                       request.source_corrupt(), now);
  });
}

absl::Status Handlers::ReplicateArtifact(const RequestContext& context,
                                         const v1::ReplicateArtifactRequest& request,
                                         v1::ReplicateArtifactResponse& response) {
  std::vector<Replicator::Target> targets;
  TC_RETURN_IF_ERROR(coordinator_.WithDirectory([&](Directory& directory, absl::Time now) {
    TC_RETURN_IF_ERROR(directory.DescribeArtifact(request.artifact_id()).status());
    for (const v1::ReplicateArtifactRequest::Target& target : request.targets()) {
      const absl::StatusOr<NodeView> node = directory.FindNode(target.node_id(), now);
      targets.push_back({.node_id = target.node_id(),
                         .location = target.location(),
                         .address = node.ok() ? node->facts.grpc_address : "",
                         .error = node.status()});
    }
    return absl::OkStatus();
  }));
  response = replicator_.Replicate(context, request.artifact_id(), std::move(targets));
  return absl::OkStatus();
}

}  // namespace tensorcast::global_store
