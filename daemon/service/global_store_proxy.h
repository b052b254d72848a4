// The calls of GlobalStore that clients make, served by the daemon and forwarded with the caller's request
// context, so that a client needs to know its own daemon only. The calls that nodes make are UNIMPLEMENTED
// here. Thread-safe.
#pragma once

#include <grpcpp/channel.h>

#include <memory>

#include "proto/global_store.grpc.pb.h"
#include "rpc/executor.h"

namespace tensorcast::daemon {

class GlobalStoreProxy final : public v1::GlobalStore::CallbackService {
 public:
  // `quick` runs single calls, `waiting` watches and ReplicateArtifact. Both must outlive the server that
  // this is registered with.
  GlobalStoreProxy(std::shared_ptr<grpc::Channel> channel, rpc::Executor* quick, rpc::Executor* waiting)
      : stub_(v1::GlobalStore::NewStub(channel)), quick_(*quick), waiting_(*waiting) {}

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
  const std::unique_ptr<v1::GlobalStore::Stub> stub_;
  rpc::Executor& quick_;
  rpc::Executor& waiting_;
};

}  // namespace tensorcast::daemon
