// A gRPC server with everything a TensorCast process wants on it: interceptors, limits, keepalive, the
// standard health service and reflection; and a listener of its own (connection_acceptor.h).
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

// Each costs a few tens of KiB, idle or not.
inline constexpr int kMaxConnections = 16384;

struct ServerOptions {
  std::vector<std::string> listen;       // host:port (port 0 picks one) or unix:/path
  std::vector<gid_t> unix_groups;        // that may use the unix paths, beside the process's own user
  std::vector<grpc::Service*> services;  // must outlive the server
  int max_message_bytes = kMaxMessageBytes;
  // At each address. More, and those that only reserved descriptors are left for, are refused with
  // UNAVAILABLE and the reason; over TCP the oldest connection on which no call was admitted gives way first.
  int max_connections = kMaxConnections;
  // Of host:port; null: those are in clear, and every peer may make every call (access.h).
  std::shared_ptr<const Credentials> credentials;
  // What callers over a unix path may do.
  security::RoleSet unix_roles = security::kEveryRole;
  // Path of the socket that grants the operator role, told to callers that `unix_roles` refuse; may be empty.
  std::string operator_socket;
  // Asked before each call of ours and again before it is answered: its error is the call's. Empty: all are
  // admitted.
  std::function<absl::Status()> admit;
  Epoch epoch;  // said with each answer of ours; number 0: none is
};

// Thread-safe.
class Server {
 public:
  // ALREADY_EXISTS when something listens on a unix path already, UNAVAILABLE when an address cannot be
  // bound, INVALID_ARGUMENT for what is not an address.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);
  // Shuts down at once. Returns when every call has ended; their Executor must still live.
  ~Server();

  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // No new calls; those running may end until the deadline and are cancelled then. Idempotent.
  void Shutdown(SteadyTime deadline);
  // Blocks until Shutdown.
  void Wait();

  // The share of connections, by a sample, with bytes that the server did not read yet; zero if it keeps up.
  double UnreadShare() const;

  // What to give to MakeChannel, in the order of `listen`, with the ports that were picked.
  const std::vector<std::string>& addresses() const;

 private:
  Server();

  // Of the certificate, where there is one.
  std::optional<otel::GaugeRegistration> certificate_gauge_;
  std::unique_ptr<AccessControl> access_;  // asked by the server's calls; null: nothing is checked
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor>
      tls_connections_;  // null without credentials
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ConnectionAcceptor> acceptor_;  // hands over to them
};

}  // namespace tensorcast::rpc
