#include "client/admin.h"

#include <utility>

#include "base/status.h"
#include "client/daemon_link.h"
#include "rpc/call.h"
#include "rpc/convert/convert.h"

namespace tensorcast::client {
namespace {

using DaemonStub = v1::StoreDaemon::Stub;
using StoreStub = v1::GlobalStore::Stub;

constexpr int kArtifactsPerPage = 1000;

class AdminClientImpl final : public AdminClient {
 public:
  explicit AdminClientImpl(std::unique_ptr<DaemonLink> link) : link_(std::move(link)) {}

  absl::StatusOr<std::vector<v1::Artifact>> ListArtifacts(const RequestContext& context, bool unkeyed_only,
                                                          absl::Duration min_age) override {
    v1::ListArtifactsRequest request;
    request.set_page_size(kArtifactsPerPage);
    request.set_unkeyed_only(unkeyed_only);
    if (min_age > absl::ZeroDuration()) *request.mutable_min_age() = rpc::ToProto(min_age);
    return InSpan("Client/ListArtifacts", context,
                  [&](const RequestContext& operation) -> absl::StatusOr<std::vector<v1::Artifact>> {
                    std::vector<v1::Artifact> artifacts;
                    do {
                      TC_ASSIGN_OR_RETURN(v1::ListArtifactsResponse page,
                                          CallStore(&StoreStub::ListArtifacts, operation, request));
                      for (v1::Artifact& artifact : *page.mutable_artifacts()) {
                        artifacts.push_back(std::move(artifact));
                      }
                      request.set_page_token(page.next_page_token());
                    } while (!request.page_token().empty());
                    return artifacts;
                  });
  }

  absl::Status DeleteArtifact(const RequestContext& context, std::string_view artifact_id,
                              bool only_if_unkeyed) override {
    v1::DeleteArtifactRequest request;
    request.set_artifact_id(std::string(artifact_id));
    request.set_only_if_unkeyed(only_if_unkeyed);
    return Store("Client/DeleteArtifact", &StoreStub::DeleteArtifact, context, request).status();
  }

  absl::StatusOr<std::vector<v1::Replica>> ListReplicas(const RequestContext& context,
                                                        std::string_view artifact_id) override {
    v1::ListReplicasRequest request;
    request.set_artifact_id(std::string(artifact_id));
    TC_ASSIGN_OR_RETURN(v1::ListReplicasResponse response,
                        Daemon("Client/ListReplicas", &DaemonStub::ListReplicas, context, request));
    return std::vector<v1::Replica>(std::make_move_iterator(response.mutable_replicas()->begin()),
                                    std::make_move_iterator(response.mutable_replicas()->end()));
  }

  absl::Status EvictReplica(const RequestContext& context, std::string_view replica_id, bool force) override {
    v1::EvictReplicaRequest request;
    request.set_replica_id(std::string(replica_id));
    request.set_force(force);
    return Daemon("Client/EvictReplica", &DaemonStub::EvictReplica, context, request).status();
  }

  absl::Status SetPinned(const RequestContext& context, std::string_view replica_id, bool pinned) override {
    if (pinned) {
      v1::PinReplicaRequest request;
      request.set_replica_id(std::string(replica_id));
      return Daemon("Client/PinReplica", &DaemonStub::PinReplica, context, request).status();
    }
    v1::UnpinReplicaRequest request;
    request.set_replica_id(std::string(replica_id));
    return Daemon("Client/UnpinReplica", &DaemonStub::UnpinReplica, context, request).status();
  }

  absl::StatusOr<v1::GetStatusResponse> GetStatus(const RequestContext& context) override {
    return Daemon("Client/GetStatus", &DaemonStub::GetStatus, context, v1::GetStatusRequest());
  }

  absl::Status WatchStatus(const RequestContext& context, absl::Duration interval,
                           std::function<bool(const v1::GetStatusResponse&)> on_status) override {
    v1::WatchStatusRequest request;
    *request.mutable_interval() = rpc::ToProto(interval);
    bool stopped = false;
    absl::Status status = rpc::CallServerStream(
        link_->daemon(), &DaemonStub::WatchStatus, OperationContext(context), request,
        [&](v1::GetStatusResponse&& response) {
          stopped = !on_status(response);
          return stopped ? absl::CancelledError("the caller stopped watching") : absl::OkStatus();
        });
    return stopped ? absl::OkStatus() : status;
  }

  absl::StatusOr<v1::GetClusterStatusResponse> GetClusterStatus(const RequestContext& context) override {
    return Store("Client/GetClusterStatus", &StoreStub::GetClusterStatus, context,
                 v1::GetClusterStatusRequest());
  }

  absl::Status DrainNode(const RequestContext& context, std::string_view node_id, bool draining) override {
    v1::DrainNodeRequest request;
    request.set_node_id(std::string(node_id));
    request.set_draining(draining);
    return Store("Client/DrainNode", &StoreStub::DrainNode, context, request).status();
  }

 private:
  template <class Request, class Response>
  using DaemonMethod = grpc::Status (DaemonStub::*)(grpc::ClientContext*, const Request&, Response*);
  template <class Request, class Response>
  using StoreMethod = grpc::Status (StoreStub::*)(grpc::ClientContext*, const Request&, Response*);

  // Operations of one call.
  template <class Request, class Response>
  absl::StatusOr<Response> Daemon(std::string_view span, DaemonMethod<Request, Response> method,
                                  const RequestContext& context, const Request& request) {
    return InSpan(span, context, [&](const RequestContext& operation) {
      return rpc::CallUnary(link_->daemon(), method, operation, request);
    });
  }
  template <class Request, class Response>
  absl::StatusOr<Response> Store(std::string_view span, StoreMethod<Request, Response> method,
                                 const RequestContext& context, const Request& request) {
    return InSpan(span, context,
                  [&](const RequestContext& operation) { return CallStore(method, operation, request); });
  }
  template <class Request, class Response>
  absl::StatusOr<Response> CallStore(StoreMethod<Request, Response> method, const RequestContext& context,
                                     const Request& request) {
    return rpc::CallUnary(link_->global_store(), method, context, request);
  }

  const std::unique_ptr<DaemonLink> link_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<AdminClient>> AdminClient::Connect(const std::string& daemon,
                                                                  absl::Duration connect_timeout,
                                                                  const Cancellation& cancellation) {
  TC_ASSIGN_OR_RETURN(auto link, DaemonLink::Connect(daemon, connect_timeout, cancellation));
  return std::make_unique<AdminClientImpl>(std::move(link));
}

}  // namespace tensorcast::client
