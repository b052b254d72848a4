// Accepts the connections of a server and hands them on. gRPC 1.51's own listener gives up for good when it
// meets a moment in which the process has no descriptor left; this one keeps some in reserve, bounds what it
// lets in at each address, tells the others why not, and never stops listening. What comes by TCP leaves
// descriptors to unix sockets (base/posix/process_limits.h).
//
// One thread a server; it never blocks on a peer. Internal to this folder; thread-compatible.
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
    std::shared_ptr<const Credentials> credentials;  // of those that do not come by a unix path; may be null
  };
  // Gets a connection and the socket that it came by. Runs on the acceptor's thread and must not block.
  using Handler = std::function<void(int listener, UniqueFd connection)>;

  // Listens. Peers that connect wait until Start.
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Listen(const Options& options);
  ~ConnectionAcceptor() { Stop(); }

  // At most once.
  void Start(Handler handler);
  // Stops listening and removes the files of unix sockets; the handler does not run any more. Idempotent.
  void Stop();

  // As ConnectionTable::UnreadShare, of the address where it is largest.
  double UnreadShare();

  // In the order of `listen`, with the ports that were picked.
  const std::vector<std::string>& addresses() const { return addresses_; }
  // A call of this peer was admitted, so that its connection counts as admitted. Thread-safe.
  void Admitted(std::string_view peer);

 private:
  // An address with the connections that came by it: what fills one leaves the others their room.
  struct Endpoint {
    ListeningSockets listening;
    std::unique_ptr<ConnectionTable> table;
    SteadyTime resume = SteadyTime::InfinitePast();  // accepting
  };

  explicit ConnectionAcceptor(const Options& options);
  void Run();
  void AcceptAll(Endpoint& endpoint, int listener);
  void Decide(Endpoint& endpoint, int listener, UniqueFd connection);
  // Tells as many of them as there is room for, the first first.
  void RefuseConnections();
  // How many connections to accept at once. None at an address with certificates while the server is behind
  // with the handshakes of those before: handshakes that all make progress together all end too late, and
  // peers that give up begin again, for good. In the kernel's queue a peer costs the server nothing.
  int AcceptsAtOnce(Endpoint& endpoint) const;
  // OK: there is room for another connection with this descriptor, perhaps since the oldest unadmitted
  // connection was ended for it.
  absl::Status MakeRoom(Endpoint& endpoint, int connection) const;

  // A connection that is refused and was not told so yet.
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

  // The thread's own.
  std::unique_ptr<RefusingServer> refusing_;
  std::deque<RefusedConnection> to_refuse_;
  SpareDescriptor spare_;

  std::thread thread_;
};

}  // namespace tensorcast::rpc
