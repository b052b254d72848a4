// Accepts the connections of a server, limits their number at each address, and tells refused peers the
// reason. Replaces gRPC 1.51's listener, which stops forever if the process has no free descriptor at one
// moment.
//
// Has one thread, which never blocks on a peer. Internal to this folder; thread-compatible.
#pragma once

#include <sys/types.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/posix/process_limits.h"
#include "base/posix/unique_fd.h"
#include "base/steady_time.h"
#include "rpc/connection_table.h"
#include "rpc/listening_sockets.h"
#include "rpc/refusing_server.h"

namespace tensorcast::rpc {

class Credentials;

class ConnectionAcceptor {
 public:
  struct Options {
    std::vector<std::string> listen;  // see ListeningSockets::Open
    std::vector<gid_t> unix_groups;
    int max_connections;                             // at each address
    std::shared_ptr<const Credentials> credentials;  // for connections at host:port; may be null
  };
  // Receives a connection and the socket that accepted it. Runs on the acceptor's thread and must not block.
  using Handler = std::function<void(int listener, UniqueFd connection)>;

  // Listens. Peers that connect wait until Start.
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Listen(const Options& options);
  ~ConnectionAcceptor() { Stop(); }

  // Call this at most once. RESOURCE_EXHAUSTED if no thread can be started.
  absl::Status Start(Handler handler);
  // Stops listening and removes the files of unix sockets; the handler is no longer called. Idempotent.
  void Stop();

  // The largest ConnectionTable::UnreadShare of all addresses.
  double UnreadShare();

  // In the order of `listen`, with the chosen ports.
  const std::vector<std::string>& addresses() const { return addresses_; }
  // Call this when a call of this peer was admitted. Thread-safe.
  void Admitted(std::string_view peer);

 private:
  // An address with its own table of connections, so that a full address does not affect the others.
  struct Endpoint {
    ListeningSockets listening;
    std::unique_ptr<ConnectionTable> table;
    SteadyTime resume = SteadyTime::InfinitePast();  // when to accept again
  };

  explicit ConnectionAcceptor(const Options& options);
  void Run();
  void AcceptAll(Endpoint& endpoint, int listener);
  void Decide(Endpoint& endpoint, int listener, UniqueFd connection);
  // Refuses as many queued connections as there is room for, oldest first.
  void RefuseConnections();
  // The number of connections to accept now; 0 while the server is behind with earlier TLS handshakes:
  // further connections could make all handshakes end too late, and all peers would start again.
  int AcceptsAtOnce(Endpoint& endpoint) const;
  // OK if there is room for another connection with this descriptor. May make room: ends the oldest
  // unadmitted connection.
  absl::Status MakeRoom(Endpoint& endpoint, int connection) const;

  // A refused connection to which the reason was not sent yet.
  struct RefusedConnection {
    int listener;
    UniqueFd connection;
    absl::Status reason;
  };

  const Options options_;
  std::vector<Endpoint> endpoints_;
  std::vector<std::string> addresses_;
  UniqueFd stop_;  // an eventfd
  Handler handler_;

  // Used by the thread only.
  std::unique_ptr<RefusingServer> refusing_;
  std::deque<RefusedConnection> to_refuse_;
  SpareDescriptor spare_;

  std::thread thread_;
};

}  // namespace tensorcast::rpc
