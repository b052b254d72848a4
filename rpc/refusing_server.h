// Tells refused peers, in gRPC's protocol, why a server does not accept them. Each call on a refused
// connection ends at once with the reason. The connection ends a second later, so that the peer has time to
// get the reason.
//
// Internal to this folder; one owner thread.
#pragma once

#include <deque>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/posix/unique_fd.h"
#include "base/steady_time.h"

namespace grpc {
class Server;
namespace experimental {
class ExternalConnectionAcceptor;
}  // namespace experimental
}  // namespace grpc

namespace tensorcast::rpc {

class Credentials;

class RefusingServer {
 public:
  // `credentials`: see ConnectionAcceptor; null: every connection is unencrypted.
  static absl::StatusOr<std::unique_ptr<RefusingServer>> Start(const Credentials* credentials);
  ~RefusingServer();

  // Refuses `connection`, which the socket `listener` accepted. If too many refused connections are open,
  // ends the oldest refused connection. REQUIRES: if `tls`, Start had credentials.
  void Refuse(int listener, UniqueFd connection, bool tls, const absl::Status& reason);
  // The earliest time for the next Refuse. An earlier Refuse could end a connection before its peer got the
  // reason. InfinitePast: now.
  SteadyTime RoomAt() const;
  bool empty() const { return refused_.empty(); }
  // Ends the connections that are a second old. Returns when to call this again; InfiniteFuture if no
  // connection is left.
  SteadyTime EndOverdue();

 private:
  class Service;
  RefusingServer();

  // A refused connection. `socket` is a duplicate, because gRPC may close its own descriptor at any time.
  struct Refused {
    UniqueFd socket;
    SteadyTime end;
  };
  void EndOldest();

  const std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> tls_connections_;
  std::unique_ptr<grpc::Server> server_;
  std::deque<Refused> refused_;  // oldest first
};

}  // namespace tensorcast::rpc
