// The calls of GlobalStore that clients make, served by the daemon and forwarded with the caller's request
// context, so that a client needs to know its own daemon only. What the answers say of keys is remembered.
// While the global store is away, errors say so and name it, and a key that is known here is resolved all the
// same, marked as unconfirmed. The calls that nodes make are UNIMPLEMENTED here. Thread-safe.
#pragma once

#include <grpcpp/channel.h>

#include <memory>

#include "daemon/global_store_link/global_store_client.h"
#include "daemon/global_store_link/known_keys.h"
#include "proto/global_store.grpc.pb.h"
#include "rpc/executor.h"

namespace tensorcast::daemon {

class GlobalStoreProxy final : public v1::GlobalStore::CallbackService {
 public:
  // `quick` runs single calls, `waiting` watches and ReplicateArtifact. `client` is one on the same channel.
  // All must outlive the server that this is registered with.
  GlobalStoreProxy(std::shared_ptr<grpc::Channel> channel, GlobalStoreClient* client, KnownKeys* known_keys,
                   rpc::Executor* quick, rpc::Executor* waiting)
      : stub_(v1::GlobalStore::NewStub(channel)),
        client_(*client),
        known_keys_(*known_keys),
        quick_(*quick),
        waiting_(*waiting) {}

  grpc::ServerWriteReactor<v1::DescribeArtifactResponse>* DescribeArtifact(
      grpc::CallbackServerContext* call, const v1::DescribeArtifactRequest* request) override;
  grpc::ServerUnaryReactor* ListArtifacts(grpc::CallbackServerContext* call,
                                          const v1::ListArtifactsRequest* request,
                                          v1::ListArtifactsResponse* response) override;
  grpc::ServerUnaryReactor* DeleteArtifact(grpc::CallbackServerContext* call,
                                           const v1::DeleteArtifactRequest* request,
                                           v1::DeleteArtifactResponse* response) override;
  grpc::ServerUnaryReactor* BindKey(grpc::CallbackServerContext* call, const v1::BindKeyRequest* request,
                                    v1::BindKeyResponse* response) override;
  grpc::ServerUnaryReactor* ResolveKey(grpc::CallbackServerContext* call,
                                       const v1::ResolveKeyRequest* request,
                                       v1::ResolveKeyResponse* response) override;
  grpc::ServerUnaryReactor* ListKeys(grpc::CallbackServerContext* call, const v1::ListKeysRequest* request,
                                     v1::ListKeysResponse* response) override;
  grpc::ServerUnaryReactor* DeleteKey(grpc::CallbackServerContext* call, const v1::DeleteKeyRequest* request,
                                      v1::DeleteKeyResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchKeysResponse>* WatchKeys(grpc::CallbackServerContext* call,
                                                             const v1::WatchKeysRequest* request) override;
  grpc::ServerUnaryReactor* GetClusterStatus(grpc::CallbackServerContext* call,
                                             const v1::GetClusterStatusRequest* request,
                                             v1::GetClusterStatusResponse* response) override;
  grpc::ServerUnaryReactor* DrainNode(grpc::CallbackServerContext* call, const v1::DrainNodeRequest* request,
                                      v1::DrainNodeResponse* response) override;
  grpc::ServerUnaryReactor* ReplicateArtifact(grpc::CallbackServerContext* call,
                                              const v1::ReplicateArtifactRequest* request,
                                              v1::ReplicateArtifactResponse* response) override;

 private:
  using Stub = v1::GlobalStore::Stub;

  template <class Request, class Response>
  absl::Status Ask(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                   const RequestContext& context, const Request& request, Response* response);
  template <class Request, class Response>
  grpc::ServerUnaryReactor* Forward(grpc::CallbackServerContext* call, rpc::Executor& executor,
                                    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                                 Response*),
                                    const Request* request, Response* response);

  const std::unique_ptr<Stub> stub_;
  GlobalStoreClient& client_;
  KnownKeys& known_keys_;
  rpc::Executor& quick_;
  rpc::Executor& waiting_;
};

}  // namespace tensorcast::daemon
