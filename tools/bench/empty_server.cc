#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "core/status/status.h"
#include "proto/global_store.grpc.pb.h"
#include "rpc/server.h"
#include "tools/bench/bench.h"

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
  const std::string line = server->addresses().front() + "\n";
  if (write(ready_fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return ErrnoStatus(errno, "write to", "--ready-fd");
  }
  sigset_t end;
  sigemptyset(&end);
  sigaddset(&end, SIGTERM);
  sigaddset(&end, SIGINT);
  int number = 0;
  sigwait(&end, &number);
  return absl::OkStatus();
}

}  // namespace tensorcast::bench
