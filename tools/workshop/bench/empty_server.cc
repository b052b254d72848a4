#include "base/status.h"
#include "proto/global_store.grpc.pb.h"
#include "rpc/server.h"
#include "tools/workshop/bench/bench.h"
#include "tools/workshop/bench/child_server.h"

namespace tensorcast::bench {
namespace {

class EmptyService final : public v1::GlobalStore::CallbackService {
 public:
  grpc::ServerUnaryReactor* ResolveKey(grpc::CallbackServerContext* call, const v1::ResolveKeyRequest*,
                                       v1::ResolveKeyResponse*) override {
    grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

}  // namespace

absl::Status ServeEmptyCalls(int ready_fd) {
  EmptyService service;
  TC_ASSIGN_OR_RETURN(const auto server,
                      rpc::Server::Start({.listen = {"127.0.0.1:0"}, .services = {&service}}));
  return AnnounceAndAwaitSignal(ready_fd, server->addresses().front());
}

}  // namespace tensorcast::bench
