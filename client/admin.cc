#include "client/admin.h"

#include <utility>

#include "base/status.h"
#include "client/daemon_link.h"
#include "client/named.h"
#include "rpc/convert/convert.h"

namespace tensorcast::client {
namespace {

using DaemonStub = v1::StoreDaemon::Stub;
using StoreStub = v1::GlobalStore::Stub;

constexpr int kPageSize = 1000;

// An operation of one call, to either service.
template <class Stub, class Request, class Response>
absl::StatusOr<Response> CallInSpan(std::string_view span, Stub& stub,
                                    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                                 Response*),
                                    const RequestContext& context, const Request& request) {
  return InSpan(span, context, [&](const RequestContext& operation) {
    return rpc::CallUnary(stub, method, operation, request);
  });
}

// Until `on_news` returns false, which ends it well.
template <class Stub, class Request, class Response>
absl::Status Watch(Stub& stub,
                   std::unique_ptr<grpc::ClientReader<Response>> (Stub::*method)(grpc::ClientContext*,
                                                                                 const Request&),
                   const RequestContext& context, const Request& request,
                   const std::function<bool(const Response&)>& on_news) {
  bool stopped = false;
  absl::Status status =
      rpc::CallServerStream(stub, method, OperationContext(context), request, [&](Response&& response) {
        // Only an error ends a stream from this side, so the end that the caller wants is one, and is taken
        // back below.
        stopped = !on_news(response);
        return stopped ? absl::CancelledError("watch: stopped by the caller") : absl::OkStatus();
      });
  return stopped ? absl::OkStatus() : status;
}

}  // namespace

AdminClient::AdminClient(std::shared_ptr<DaemonLink> link) : link_(std::move(link)) {}
AdminClient::~AdminClient() = default;

absl::StatusOr<std::unique_ptr<AdminClient>> AdminClient::Connect(const ClientOptions& options) {
  TC_ASSIGN_OR_RETURN(auto link, DaemonLink::Connect(options));
  return std::unique_ptr<AdminClient>(new AdminClient(std::move(link)));
}

absl::StatusOr<std::vector<v1::Artifact>> AdminClient::ListArtifacts(const RequestContext& context,
                                                                     bool unkeyed_only,
                                                                     absl::Duration min_age, bool replicas) {
  v1::ListArtifactsRequest request;
  request.set_page_size(kPageSize);
  request.set_unkeyed_only(unkeyed_only);
  request.set_replicas(replicas);
  if (min_age > absl::ZeroDuration()) *request.mutable_min_age() = rpc::ToProto(min_age);
  TC_ASSIGN_OR_RETURN(v1::ListArtifactsResponse all,
                      InSpan("Client/ListArtifacts", context, [&](const RequestContext& operation) {
                        return AllPages(link_->global_store(), &StoreStub::ListArtifacts, operation, request,
                                        "list artifacts");
                      }));
  std::vector<v1::Artifact> artifacts;
  for (v1::Artifact& artifact : *all.mutable_artifacts()) {
    // An artifact with many replicas goes on in the next page.
    if (artifacts.empty() || artifacts.back().artifact_id() != artifact.artifact_id()) {
      artifacts.push_back(std::move(artifact));
    } else {
      artifacts.back().mutable_replicas()->MergeFrom(artifact.replicas());
    }
  }
  return artifacts;
}

absl::StatusOr<v1::Artifact> AdminClient::DescribeArtifact(const RequestContext& context,
                                                           std::string_view artifact_id) {
  v1::DescribeArtifactRequest request;
  request.set_artifact_id(std::string(artifact_id));
  return InSpan("Client/DescribeArtifact", context,
                [&](const RequestContext& operation) -> absl::StatusOr<v1::Artifact> {
                  v1::Artifact artifact;
                  // Replicas that the first message has no room for follow in others.
                  TC_RETURN_IF_ERROR(rpc::CallServerStream(link_->global_store(),
                                                           &StoreStub::DescribeArtifact, operation, request,
                                                           [&](v1::DescribeArtifactResponse&& response) {
                                                             artifact.MergeFrom(response.artifact());
                                                             return absl::OkStatus();
                                                           }));
                  return artifact;
                });
}

absl::Status AdminClient::DeleteArtifact(const RequestContext& context, std::string_view artifact_id) {
  v1::DeleteArtifactRequest request;
  request.set_artifact_id(std::string(artifact_id));
  return CallInSpan("Client/DeleteArtifact", link_->global_store(), &StoreStub::DeleteArtifact, context,
                    request)
      .status();
}

absl::StatusOr<v1::CollectArchivesResponse> AdminClient::CollectArchives(const RequestContext& context,
                                                                         absl::Duration min_age,
                                                                         bool dry_run) {
  v1::CollectArchivesRequest request;
  *request.mutable_min_age() = rpc::ToProto(min_age);
  request.set_dry_run(dry_run);
  auto collected =
      CallInSpan("Client/CollectArchives", link_->daemon(), &DaemonStub::CollectArchives, context, request);
  // A global store by itself has no archives.
  if (absl::IsUnimplemented(collected.status())) return v1::CollectArchivesResponse();
  return collected;
}

absl::StatusOr<std::vector<v1::Replica>> AdminClient::ListReplicas(const RequestContext& context,
                                                                   std::string_view artifact_id,
                                                                   bool chunk_bits) {
  v1::ListReplicasRequest request;
  request.set_artifact_id(std::string(artifact_id));
  request.set_chunk_bits(chunk_bits);
  TC_ASSIGN_OR_RETURN(
      const v1::ListReplicasResponse response,
      CallInSpan("Client/ListReplicas", link_->daemon(), &DaemonStub::ListReplicas, context, request));
  return std::vector<v1::Replica>(response.replicas().begin(), response.replicas().end());
}

absl::Status AdminClient::EvictReplica(const RequestContext& context, std::string_view replica, bool force) {
  v1::EvictReplicaRequest request;
  request.set_force(force);
  return InSpan("Client/EvictReplica", context, [&](const RequestContext& operation) {
    return ForReplicasNamed(*link_, operation, replica, [&](const std::string& replica_id) {
      request.set_replica_id(replica_id);
      return rpc::CallUnary(link_->daemon(), &DaemonStub::EvictReplica, operation, request).status();
    });
  });
}

absl::StatusOr<v1::GetStatusResponse> AdminClient::GetStatus(const RequestContext& context) {
  return CallInSpan("Client/GetStatus", link_->daemon(), &DaemonStub::GetStatus, context,
                    v1::GetStatusRequest());
}

absl::StatusOr<v1::ProcessRecords> AdminClient::ReadRecords(const RequestContext& context) {
  return CallInSpan("Client/ReadRecords", link_->records(), &v1::Records::Stub::ReadAll, context,
                    v1::ReadAllRequest());
}

absl::StatusOr<v1::ProbeNodeResponse> AdminClient::ProbeNode(const RequestContext& context,
                                                             const std::string& node_id) {
  v1::ProbeNodeRequest request;
  request.set_node_id(node_id);
  return CallInSpan("Client/ProbeNode", link_->daemon(), &DaemonStub::ProbeNode, context, request);
}

absl::StatusOr<v1::ExplainTransferResponse> AdminClient::ExplainTransfer(const RequestContext& context,
                                                                         const std::string& transfer_id) {
  v1::ExplainTransferRequest request;
  request.set_transfer_id(transfer_id);
  return CallInSpan("Client/ExplainTransfer", link_->daemon(), &DaemonStub::ExplainTransfer, context,
                    request);
}

absl::Status AdminClient::WatchStatus(const RequestContext& context, absl::Duration interval,
                                      const std::function<bool(const v1::GetStatusResponse&)>& on_status) {
  v1::WatchStatusRequest request;
  *request.mutable_interval() = rpc::ToProto(interval);
  return Watch(link_->daemon(), &DaemonStub::WatchStatus, context, request, on_status);
}

absl::StatusOr<v1::GetClusterStatusResponse> AdminClient::GetClusterStatus(const RequestContext& context) {
  return InSpan("Client/GetClusterStatus", context, [&](const RequestContext& operation) {
    return AllPages(link_->global_store(), &StoreStub::GetClusterStatus, operation,
                    v1::GetClusterStatusRequest(), "get the cluster status");
  });
}

absl::StatusOr<v1::ExplainRolloutResponse> AdminClient::ExplainRollout(
    const RequestContext& context, const v1::ExplainRolloutRequest& request) {
  return CallInSpan("Client/ExplainRollout", link_->global_store(), &StoreStub::ExplainRollout, context,
                    request);
}

absl::StatusOr<v1::ReplicateArtifactResponse> AdminClient::Replicate(
    const RequestContext& context, const v1::ReplicateArtifactRequest& request) {
  return CallInSpan("Client/Replicate", link_->global_store(), &StoreStub::ReplicateArtifact, context,
                    request);
}

absl::StatusOr<v1::ListReplicationTasksResponse> AdminClient::ListReplicationTasks(
    const RequestContext& context, std::string_view artifact_id) {
  v1::ListReplicationTasksRequest request;
  request.set_artifact_id(std::string(artifact_id));
  request.set_page_size(kPageSize);
  return InSpan("Client/ListReplicationTasks", context, [&](const RequestContext& operation) {
    return AllPages(link_->global_store(), &StoreStub::ListReplicationTasks, operation, request,
                    "list replication tasks");
  });
}

absl::Status AdminClient::WatchReplicationTasks(
    const RequestContext& context, std::string_view artifact_id,
    const std::function<bool(const v1::WatchReplicationTasksResponse&)>& on_news) {
  v1::WatchReplicationTasksRequest request;
  request.set_artifact_id(std::string(artifact_id));
  return Watch(link_->global_store(), &StoreStub::WatchReplicationTasks, context, request, on_news);
}

absl::StatusOr<v1::CancelReplicationTasksResponse> AdminClient::CancelReplicationTasks(
    const RequestContext& context, const v1::CancelReplicationTasksRequest& request) {
  return CallInSpan("Client/CancelReplicationTasks", link_->global_store(),
                    &StoreStub::CancelReplicationTasks, context, request);
}

absl::Status AdminClient::DrainNode(const RequestContext& context, std::string_view node_id, bool draining) {
  v1::DrainNodeRequest request;
  request.set_node_id(std::string(node_id));
  request.set_draining(draining);
  return CallInSpan("Client/DrainNode", link_->global_store(), &StoreStub::DrainNode, context, request)
      .status();
}

absl::Status AdminClient::ForgetNode(const RequestContext& context, std::string_view node_id) {
  v1::ForgetNodeRequest request;
  request.set_node_id(std::string(node_id));
  return CallInSpan("Client/ForgetNode", link_->global_store(), &StoreStub::ForgetNode, context, request)
      .status();
}

}  // namespace tensorcast::client
