// A gRPC server as all TensorCast processes use it: with interceptors, limits, keepalive, the standard health
// service and reflection, and with our own listener (connection_acceptor.h).
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "otel/api/metrics.h"
#include "rpc/channel.h"
#include "rpc/epoch.h"
#include "security/roles.h"

namespace grpc {
class Server;
class Service;
namespace experimental {
class ExternalConnectionAcceptor;
}  // namespace experimental
}  // namespace grpc

namespace tensorcast::rpc {

class AccessControl;
class ConnectionAcceptor;
class Credentials;

// Each connection costs a few tens of KiB, idle or not.
inline constexpr int kMaxConnections = 16384;

struct ServerOptions {
  std::vector<std::string> listen;       // host:port (port 0: any free port) or unix:/path
  std::vector<gid_t> unix_groups;        // may use the unix paths, besides the process's own user
  std::vector<grpc::Service*> services;  // must outlive the server
  int max_message_bytes = kMaxMessageBytes;
  // Max connections at each address. To make room, the server ends the oldest TCP connection without an
  // admitted call. If there is no such connection, the server refuses the new connection with UNAVAILABLE.
  // The server does the same if only reserved descriptors are left.
  int max_connections = kMaxConnections;
  // For host:port; null: connections there have no TLS, and every peer may make every call (access.h).
  std::shared_ptr<const Credentials> credentials;
  // The roles of callers over a unix path.
  security::RoleSet unix_roles = security::kEveryRole;
  // Path of the socket that grants the operator role; errors name it if `unix_roles` refuse a caller. May be
  // empty.
  std::string operator_socket;
  // Runs before each call to `services`, and again before the call is answered. If it returns an error, the
  // call ends with that error. Empty: all calls are admitted.
  std::function<absl::Status()> admit;
  Epoch epoch;  // sent with each answer of `services`; number 0: not sent
};

// Thread-safe.
class Server {
 public:
  // ALREADY_EXISTS when a process already listens on a unix path, UNAVAILABLE when an address cannot be
  // bound, INVALID_ARGUMENT for a text that is not an address.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);
  // Shuts down at once. Blocks until every call has ended, so the Executor of the calls must still exist.
  ~Server();

  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Refuses new calls. Running calls may finish until the deadline and are then cancelled. Idempotent.
  void Shutdown(SteadyTime deadline);
  // Blocks until Shutdown.
  void Wait();

  // The share of connections with bytes that the server has not read yet, estimated from a sample; zero if
  // the server keeps up.
  double UnreadShare() const;

  // The addresses for MakeChannel, in the order of `listen`, with the chosen ports.
  const std::vector<std::string>& addresses() const;

 private:
  Server();

  // The gauge of the certificate's remaining time; not set without a certificate.
  std::optional<otel::GaugeRegistration> certificate_gauge_;
  std::unique_ptr<AccessControl> access_;  // used by the server's calls; null: callers are not checked
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor>
      tls_connections_;  // null without credentials
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ConnectionAcceptor> acceptor_;  // passes connections to the two acceptors above
};

}  // namespace tensorcast::rpc
