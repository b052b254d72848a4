// Tells refused peers why a server does not accept them, in gRPC's protocol: each call on such a connection
// ends at once with the reason, and the connection ends a second later. (If it were closed at once, the peer
// would only see "connection reset", and gRPC's clients may wait five seconds; after an immediate GOAWAY they
// would reconnect without pause.)
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
  // `credentials` as for ConnectionAcceptor; null: every connection is in clear.
  static absl::StatusOr<std::unique_ptr<RefusingServer>> Start(const Credentials* credentials);
  ~RefusingServer();

  // Refuses a connection; `listener` is the socket that accepted it. Only the latest few are open at a time,
  // since they use reserved descriptors; the oldest makes room. REQUIRES: credentials, with `tls`.
  void Refuse(int listener, UniqueFd connection, bool tls, const absl::Status& reason);
  // When the oldest will have had time to learn the reason, so that it may make room; InfinitePast if there
  // is room.
  SteadyTime RoomAt() const;
  bool empty() const { return refused_.empty(); }
  // Ends the connections that had their second. Returns when to call it again; InfiniteFuture when there is
  // none.
  SteadyTime EndOverdue();

 private:
  class Service;
  RefusingServer();

  // The connection by a descriptor of ours: gRPC may close its own at any time.
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
