// A gRPC server with everything a TensorCast process wants on it: interceptors, limits, keepalive, the
// standard health service and reflection.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/channel.h"

namespace grpc {
class Server;
class Service;
}  // namespace grpc

namespace tensorcast::rpc {

struct ServerOptions {
  std::vector<std::string> listen;       // host:port (port 0 picks one) or unix:/path
  std::vector<grpc::Service*> services;  // must outlive the server
  int max_message_bytes = kMaxMessageBytes;
};

// Thread-safe.
class Server {
 public:
  // ALREADY_EXISTS when something listens on a unix path already, UNAVAILABLE when an address cannot be
  // bound.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);
  // Shuts down at once. Returns when every call has ended; their Executor must still live.
  ~Server();

  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // No new calls; those running may end until the deadline and are cancelled then. Idempotent.
  void Shutdown(absl::Time deadline);
  // Blocks until Shutdown.
  void Wait();

  // What to give to MakeChannel, in the order of `listen`, with the ports that were picked.
  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  Server(std::unique_ptr<grpc::Server> server, std::vector<std::string> addresses);

  std::unique_ptr<grpc::Server> server_;
  std::vector<std::string> addresses_;
};

}  // namespace tensorcast::rpc
