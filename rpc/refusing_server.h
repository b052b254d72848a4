// Tells refused peers, in gRPC's protocol, why a server does not accept them. Each call on such a connection
// ends at once with the reason, and the connection ends a second later. If the connection were closed at
// once, the peer would only see "connection reset", and gRPC's clients may then wait five seconds. After an
// immediate GOAWAY they would reconnect without pause.
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

  // Refuses a connection; `listener` is the socket that accepted it. Only a few refused connections are open
  // at a time, since they use reserved descriptors; a new one ends the oldest. REQUIRES: if `tls`, Start had
  // credentials.
  void Refuse(int listener, UniqueFd connection, bool tls, const absl::Status& reason);
  // The time from which the oldest refused connection may be ended, because its peer has had time to get the
  // reason; InfinitePast if there is room.
  SteadyTime RoomAt() const;
  bool empty() const { return refused_.empty(); }
  // Ends the connections that are a second old. Returns when to call this again; InfiniteFuture if no
  // connection is left.
  SteadyTime EndOverdue();

 private:
  class Service;
  RefusingServer();

  // The connection, by a second descriptor that this class owns: gRPC may close its own at any time.
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
