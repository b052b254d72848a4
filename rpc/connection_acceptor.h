// Accepts the connections of a server and passes them on. gRPC 1.51's own listener stops for good when the
// process once has no descriptor left. This one reserves some descriptors, limits the connections at each
// address, tells refused peers the reason, and never stops listening. Connections by TCP leave descriptors to
// unix sockets (base/posix/process_limits.h).
//
// One thread per server; it never blocks on a peer. Internal to this folder; thread-compatible.
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
    std::vector<std::string> listen;  // as for ListeningSockets
    std::vector<gid_t> unix_groups;
    int max_connections;                             // at each address
    std::shared_ptr<const Credentials> credentials;  // for connections that are not by a unix path; may be
                                                     // null
  };
  // Gets a connection and the socket that accepted it. Runs on the acceptor's thread and must not block.
  using Handler = std::function<void(int listener, UniqueFd connection)>;

  // Listens. Connecting peers wait until Start.
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Listen(const Options& options);
  ~ConnectionAcceptor() { Stop(); }

  // Call it at most once.
  void Start(Handler handler);
  // Stops listening and removes the files of unix sockets; the handler is not called any more. Idempotent.
  void Stop();

  // The largest ConnectionTable::UnreadShare of all addresses.
  double UnreadShare();

  // In the order of `listen`, with the chosen ports.
  const std::vector<std::string>& addresses() const { return addresses_; }
  // A call of this peer was admitted, so that its connection counts as admitted. Thread-safe.
  void Admitted(std::string_view peer);

 private:
  // An address with its connections, so that a full address leaves the others their room.
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
  // The number of connections to accept at once. None at an address with certificates while the server is
  // behind with the handshakes of earlier ones: handshakes that all progress together all end too late, and
  // peers that give up start again, forever. A peer in the kernel's queue costs the server nothing.
  int AcceptsAtOnce(Endpoint& endpoint) const;
  // OK: there is room for another connection with this descriptor, perhaps because the oldest unadmitted
  // connection was ended for it.
  absl::Status MakeRoom(Endpoint& endpoint, int connection) const;

  // A connection to refuse that was not told so yet.
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
