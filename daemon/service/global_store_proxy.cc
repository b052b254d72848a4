#include "daemon/service/global_store_proxy.h"

#include <utility>

#include "base/status.h"
#include "base/steady_time.h"
#include "rpc/call.h"
#include "rpc/handlers.h"

namespace tensorcast::daemon {
namespace {

// A client retries what is UNAVAILABLE; twice retried would be retried too long.
rpc::CallOptions Once() { return {.retry_for = absl::ZeroDuration(), .what = "call of the global store"}; }

}  // namespace

template <class Request, class Response>
absl::Status GlobalStoreProxy::Ask(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                                Response*),
                                   const RequestContext& context, const Request& request,
                                   Response* response) {
  const SteadyTime began = SteadyNow();
  absl::StatusOr<Response> answer = rpc::CallUnary(*stub_, method, context, request, Once());
  TC_RETURN_IF_ERROR(client_.Noted(answer.status(), began));
  *response = *std::move(answer);
  return absl::OkStatus();
}

template <class Request, class Response>
grpc::ServerUnaryReactor* GlobalStoreProxy::Forward(grpc::CallbackServerContext* call,
                                                    rpc::Executor& executor,
                                                    grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                                                 const Request&, Response*),
                                                    const Request* request, Response* response) {
  return rpc::HandleUnary(call, executor, [this, method, request, response](const RequestContext& context) {
    return Ask(method, context, *request, response);
  });
}

grpc::ServerWriteReactor<v1::DescribeArtifactResponse>* GlobalStoreProxy::DescribeArtifact(
    grpc::CallbackServerContext* call, const v1::DescribeArtifactRequest* request) {
  using Response = v1::DescribeArtifactResponse;
  return rpc::HandleWriteStream<Response>(
      call, quick_, [this, request](const RequestContext& context, rpc::StreamWriter<Response>& writer) {
        const SteadyTime began = SteadyNow();
        return client_.Noted(
            rpc::CallServerStream(
                *stub_, &Stub::DescribeArtifact, context, *request,
                [&writer](Response&& response) { return writer.Write(std::move(response)); }, Once()),
            began);
      });
}

grpc::ServerWriteReactor<v1::WatchKeysResponse>* GlobalStoreProxy::WatchKeys(
    grpc::CallbackServerContext* call, const v1::WatchKeysRequest* request) {
  using Response = v1::WatchKeysResponse;
  return rpc::HandleWriteStream<Response>(
      call, waiting_, [this, request](const RequestContext& context, rpc::StreamWriter<Response>& writer) {
        const auto pass_on = [&](Response&& response) {
          const std::string key = response.key().name();
          if (response.has_key()) {
            response.deleted() ? known_keys_.Forget(key, SteadyNow())
                               : known_keys_.Note(response.key(), SteadyNow());
          }
          // One waiting message a key: a slow watcher misses revisions in between, never the latest.
          writer.WriteLatest(std::move(response), key);
          return absl::OkStatus();
        };
        const SteadyTime began = SteadyNow();
        return client_.Noted(
            rpc::CallServerStream(*stub_, &Stub::WatchKeys, context, *request, pass_on, Once()), began);
      });
}

grpc::ServerUnaryReactor* GlobalStoreProxy::ListArtifacts(grpc::CallbackServerContext* call,
                                                          const v1::ListArtifactsRequest* request,
                                                          v1::ListArtifactsResponse* response) {
  return Forward(call, quick_, &Stub::ListArtifacts, request, response);
}

grpc::ServerUnaryReactor* GlobalStoreProxy::DeleteArtifact(grpc::CallbackServerContext* call,
                                                           const v1::DeleteArtifactRequest* request,
                                                           v1::DeleteArtifactResponse* response) {
  return Forward(call, quick_, &Stub::DeleteArtifact, request, response);
}

grpc::ServerUnaryReactor* GlobalStoreProxy::BindKey(grpc::CallbackServerContext* call,
                                                    const v1::BindKeyRequest* request,
                                                    v1::BindKeyResponse* response) {
  return rpc::HandleUnary(call, quick_,
                          [this, request, response](const RequestContext& context) -> absl::Status {
                            const SteadyTime asked = SteadyNow();
                            TC_RETURN_IF_ERROR(Ask(&Stub::BindKey, context, *request, response));
                            known_keys_.Note(response->key(), asked);
                            return absl::OkStatus();
                          });
}

grpc::ServerUnaryReactor* GlobalStoreProxy::ResolveKey(grpc::CallbackServerContext* call,
                                                       const v1::ResolveKeyRequest* request,
                                                       v1::ResolveKeyResponse* response) {
  return rpc::HandleUnary(
      call, quick_, [this, request, response](const RequestContext& context) -> absl::Status {
        TC_ASSIGN_OR_RETURN(ResolvedKey resolved, known_keys_.Resolve(context, request->key()));
        *response->mutable_key() = std::move(resolved.key);
        response->set_unconfirmed(resolved.unconfirmed);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* GlobalStoreProxy::ListKeys(grpc::CallbackServerContext* call,
                                                     const v1::ListKeysRequest* request,
                                                     v1::ListKeysResponse* response) {
  return Forward(call, quick_, &Stub::ListKeys, request, response);
}

grpc::ServerUnaryReactor* GlobalStoreProxy::DeleteKey(grpc::CallbackServerContext* call,
                                                      const v1::DeleteKeyRequest* request,
                                                      v1::DeleteKeyResponse* response) {
  return rpc::HandleUnary(call, quick_,
                          [this, request, response](const RequestContext& context) -> absl::Status {
                            const SteadyTime asked = SteadyNow();
                            TC_RETURN_IF_ERROR(Ask(&Stub::DeleteKey, context, *request, response));
                            known_keys_.Forget(request->key(), asked);
                            return absl::OkStatus();
                          });
}

grpc::ServerUnaryReactor* GlobalStoreProxy::GetClusterStatus(grpc::CallbackServerContext* call,
                                                             const v1::GetClusterStatusRequest* request,
                                                             v1::GetClusterStatusResponse* response) {
  return Forward(call, quick_, &Stub::GetClusterStatus, request, response);
}

grpc::ServerUnaryReactor* GlobalStoreProxy::DrainNode(grpc::CallbackServerContext* call,
                                                      const v1::DrainNodeRequest* request,
                                                      v1::DrainNodeResponse* response) {
  return Forward(call, quick_, &Stub::DrainNode, request, response);
}

grpc::ServerUnaryReactor* GlobalStoreProxy::ReplicateArtifact(grpc::CallbackServerContext* call,
                                                              const v1::ReplicateArtifactRequest* request,
                                                              v1::ReplicateArtifactResponse* response) {
  return Forward(call, waiting_, &Stub::ReplicateArtifact, request, response);
}

}  // namespace tensorcast::daemon
