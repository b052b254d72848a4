// A real server with scripted handlers, and a channel to it, for this folder's tests.
#pragma once

#include <grpcpp/channel.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/log/check.h"
#include "proto/daemon.grpc.pb.h"
#include "proto/global_store.grpc.pb.h"
#include "rpc/channel.h"
#include "rpc/handlers.h"
#include "rpc/server.h"

namespace tensorcast::rpc {

inline RequestContext Within(absl::Duration timeout) { return RequestContext::Background(timeout); }

// Set the handlers before the first call.
class TestGlobalStore final : public v1::GlobalStore::CallbackService {
 public:
  explicit TestGlobalStore(Executor* executor) : executor_(*executor) {}

  std::function<absl::Status(const RequestContext&, const v1::BindKeyRequest&, v1::BindKeyResponse&)>
      bind_key;
  std::function<void(const RequestContext&, v1::ResolveKeyResponse&, Finisher)> resolve_key;
  std::function<absl::Status(v1::ReconcileInventoryRequest&&)> on_inventory_message;
  std::function<absl::Status(const RequestContext&, v1::ReconcileInventoryResponse&)> on_inventory_end;
  StreamBounds inventory_bounds;
  std::function<absl::Status(const RequestContext&, StreamWriter<v1::DescribeArtifactResponse>&)> describe;
  std::function<void(const RequestContext&, std::shared_ptr<StreamWriter<v1::WatchKeysResponse>>, Finisher)>
      watch;

  grpc::ServerUnaryReactor* BindKey(grpc::CallbackServerContext* call, const v1::BindKeyRequest* request,
                                    v1::BindKeyResponse* response) override {
    return HandleUnary(call, executor_, [this, request, response](const RequestContext& context) {
      return bind_key(context, *request, *response);
    });
  }
  grpc::ServerUnaryReactor* ResolveKey(grpc::CallbackServerContext* call, const v1::ResolveKeyRequest*,
                                       v1::ResolveKeyResponse* response) override {
    return HandleUnaryAsync(call, executor_,
                            [this, response](const RequestContext& context, const Finisher& finisher) {
                              resolve_key(context, *response, finisher);
                            });
  }
  grpc::ServerReadReactor<v1::ReconcileInventoryRequest>* ReconcileInventory(
      grpc::CallbackServerContext* call, v1::ReconcileInventoryResponse* response) override {
    return HandleReadStream<v1::ReconcileInventoryRequest>(
        call, executor_, on_inventory_message,
        [this, response](const RequestContext& context) { return on_inventory_end(context, *response); },
        inventory_bounds);
  }
  grpc::ServerWriteReactor<v1::DescribeArtifactResponse>* DescribeArtifact(
      grpc::CallbackServerContext* call, const v1::DescribeArtifactRequest*) override {
    return HandleWriteStream<v1::DescribeArtifactResponse>(call, executor_, describe);
  }
  grpc::ServerWriteReactor<v1::WatchKeysResponse>* WatchKeys(grpc::CallbackServerContext* call,
                                                             const v1::WatchKeysRequest*) override {
    return HandleWriteStreamAsync<v1::WatchKeysResponse>(call, executor_, watch);
  }

 private:
  Executor& executor_;
};

// The executor is destroyed last: handlers run on it until the server has ended.
struct TestServer {
  explicit TestServer(const Executor::Options& options = {}) : executor(options) {}

  void Start(std::vector<grpc::Service*> more = {}) {
    more.push_back(&service);
    auto started = Server::Start({.listen = {"127.0.0.1:0"}, .services = more});
    CHECK_OK(started.status());
    server = *std::move(started);
    channel = MakeChannel(server->addresses()[0]);
    stub = v1::GlobalStore::NewStub(channel);
  }

  Executor executor;
  TestGlobalStore service{&executor};
  std::unique_ptr<Server> server;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::GlobalStore::Stub> stub;
};

}  // namespace tensorcast::rpc
