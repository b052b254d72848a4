// Which of the connections that were handed to gRPC are still open. gRPC owns their descriptors and does not
// tell when it closes one; but the kernel says whether a descriptor is still the socket that it was.
//
// A connection over TCP is unadmitted until a call on it has been admitted: the oldest of these gives way
// where there is no room for another. Internal to this folder; thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast::rpc {

class ConnectionTable {
 public:
  // Those of every table are one gauge of the process.
  explicit ConnectionTable(int max_connections);
  ~ConnectionTable();

  // Whether one more would be too many. Looking at all of them takes a while when there are thousands: when
  // that found none gone, it is not done again for a multiple of the time that it took.
  bool Full();
  void Add(int socket);
  // How many are open.
  int Count();
  // The share of them, by a sample, with bytes that wait to be read: of a server that keeps up next to none.
  // Zero where there are few connections, of which it would say nothing.
  double UnreadShare();

  // Adds one over TCP, of this peer as gRPC names it (TcpPeerOf); it is unadmitted at first.
  void AddUnadmitted(int socket, std::string peer);
  // How many of the newest unadmitted connections have bytes that wait to be read, counted up to `max`: on a
  // server with certificates each is a handshake that it has not got to.
  int UnreadHandshakes(int max);
  // A call of this peer was admitted. Cheap: called for each call.
  void Admitted(std::string_view peer);
  // Shuts down the oldest unadmitted connection that is at least this old, which gRPC then closes. False
  // where there is none.
  bool EndOldestUnadmitted(absl::Duration age);

 private:
  struct Connection {
    int socket;
    std::pair<dev_t, ino_t>
        inode;  // the kernel numbers sockets one after another, and begins anew after 2^32
  };
  struct UnadmittedConnection {
    uint64_t id;
    Connection connection;
    std::string peer;
    SteadyTime since;
  };

  void Sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False where it was none any more.
  bool Forget(const UnadmittedConnection& one) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int max_connections_;
  absl::Mutex mutex_;
  std::vector<Connection> connections_ ABSL_GUARDED_BY(mutex_);
  size_t next_sampled_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<UnadmittedConnection> unadmitted_
      ABSL_GUARDED_BY(mutex_);  // the oldest first; some have made a call, or left
  // Of those that have made no call, each with the latest connection of that peer.
  absl::flat_hash_map<std::string, uint64_t> strange_peers_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_unadmitted_ ABSL_GUARDED_BY(mutex_) = 0;
  SteadyTime next_sweep_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
};

// The peer of a TCP connection, as grpc::ServerContext::peer() names it: "ipv4:10.0.0.1:7000". Empty for any
// other socket.
std::string TcpPeerOf(int socket);

}  // namespace tensorcast::rpc
