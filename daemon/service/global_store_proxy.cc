#include "daemon/service/global_store_proxy.h"

#include <utility>

#include "core/status/status.h"
#include "rpc/call.h"
#include "rpc/handlers.h"

namespace tensorcast::daemon {
namespace {

using Stub = v1::GlobalStore::Stub;

// A client retries what is UNAVAILABLE; twice retried would be retried too long.
rpc::CallOptions Once() { return {.retry_for = absl::ZeroDuration(), .what = "call of the global store"}; }

template <class Request, class Response>
grpc::ServerUnaryReactor* Forward(grpc::CallbackServerContext* call, rpc::Executor& executor, Stub& stub,
                                  grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                               Response*),
                                  const Request* request, Response* response) {
  return rpc::HandleUnary(
      call, executor, [&stub, method, request, response](const RequestContext& context) -> absl::Status {
        TC_ASSIGN_OR_RETURN(*response, rpc::CallUnary(stub, method, context, *request, Once()));
        return absl::OkStatus();
      });
}

}  // namespace

grpc::ServerWriteReactor<v1::DescribeArtifactResponse>* GlobalStoreProxy::DescribeArtifact(
    grpc::CallbackServerContext* call, const v1::DescribeArtifactRequest* request) {
  using Response = v1::DescribeArtifactResponse;
  return rpc::HandleWriteStream<Response>(
      call, quick_, [this, request](const RequestContext& context, rpc::StreamWriter<Response>& writer) {
        return rpc::CallServerStream(
            *stub_, &Stub::DescribeArtifact, context, *request,
            [&writer](Response&& response) { return writer.Write(std::move(response)); }, Once());
      });
}

grpc::ServerWriteReactor<v1::WatchKeysResponse>* GlobalStoreProxy::WatchKeys(
    grpc::CallbackServerContext* call, const v1::WatchKeysRequest* request) {
  using Response = v1::WatchKeysResponse;
  return rpc::HandleWriteStream<Response>(
      call, waiting_, [this, request](const RequestContext& context, rpc::StreamWriter<Response>& writer) {
        const auto pass_on = [&writer](Response&& response) {
          // One waiting message a key: a slow watcher misses revisions in between, never the latest.
          const std::string key = response.key().name();
          writer.WriteLatest(std::move(response), key);
          return absl::OkStatus();
        };
        return rpc::CallServerStream(*stub_, &Stub::WatchKeys, context, *request, pass_on, Once());
      });
}

grpc::ServerUnaryReactor* GlobalStoreProxy::ListArtifacts(grpc::CallbackServerContext* call,
                                                          const v1::ListArtifactsRequest* request,
                                                          v1::ListArtifactsResponse* response) {
  return Forward(call, quick_, *stub_, &Stub::ListArtifacts, request, response);
}

grpc::ServerUnaryReactor* GlobalStoreProxy::DeleteArtifact(grpc::CallbackServerContext* call,
                                                           const v1::DeleteArtifactRequest* request,
                                                           v1::DeleteArtifactResponse* response) {
  return Forward(call, quick_, *stub_, &Stub::DeleteArtifact, request, response);
}

grpc::ServerUnaryReactor* GlobalStoreProxy::BindKey(grpc::CallbackServerContext* call,
                                                    const v1::BindKeyRequest* request,
                                                    v1::BindKeyResponse* response) {
  return Forward(call, quick_, *stub_, &Stub::BindKey, request, response);
}

grpc::ServerUnaryReactor* GlobalStoreProxy::ResolveKey(grpc::CallbackServerContext* call,
                                                       const v1::ResolveKeyRequest* request,
                                                       v1::ResolveKeyResponse* response) {
  return Forward(call, quick_, *stub_, &Stub::ResolveKey, request, response);
}

grpc::ServerUnaryReactor* GlobalStoreProxy::ListKeys(grpc::CallbackServerContext* call,
                                                     const v1::ListKeysRequest* request,
                                                     v1::ListKeysResponse* response) {
  return Forward(call, quick_, *stub_, &Stub::ListKeys, request, response);
}

grpc::ServerUnaryReactor* GlobalStoreProxy::DeleteKey(grpc::CallbackServerContext* call,
                                                      const v1::DeleteKeyRequest* request,
                                                      v1::DeleteKeyResponse* response) {
  return Forward(call, quick_, *stub_, &Stub::DeleteKey, request, response);
}

grpc::ServerUnaryReactor* GlobalStoreProxy::GetClusterStatus(grpc::CallbackServerContext* call,
                                                             const v1::GetClusterStatusRequest* request,
                                                             v1::GetClusterStatusResponse* response) {
  return Forward(call, quick_, *stub_, &Stub::GetClusterStatus, request, response);
}

grpc::ServerUnaryReactor* GlobalStoreProxy::DrainNode(grpc::CallbackServerContext* call,
                                                      const v1::DrainNodeRequest* request,
                                                      v1::DrainNodeResponse* response) {
  return Forward(call, quick_, *stub_, &Stub::DrainNode, request, response);
}

grpc::ServerUnaryReactor* GlobalStoreProxy::ReplicateArtifact(grpc::CallbackServerContext* call,
                                                              const v1::ReplicateArtifactRequest* request,
                                                              v1::ReplicateArtifactResponse* response) {
  return Forward(call, waiting_, *stub_, &Stub::ReplicateArtifact, request, response);
}

}  // namespace tensorcast::daemon
