// The connections passed to gRPC that are still open. gRPC owns their descriptors and does not report when it
// closes one. So the table asks the kernel whether a descriptor is still the same socket.
//
// A TCP connection is unadmitted until a call on this connection was admitted. Internal to this folder;
// thread-safe.
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
  // One gauge of the process counts the connections of all tables.
  explicit ConnectionTable(int max_connections);
  ~ConnectionTable();

  // Whether one more connection would be too many. May still be true for a moment after a connection ended.
  bool Full();
  void Add(int socket);
  // The number of open connections.
  int Count();
  // The share of connections with unread bytes, estimated from a sample. Almost zero if the server keeps up.
  // Zero if there are too few connections for an estimate.
  double UnreadShare();

  // Adds a TCP connection, which is unadmitted at first. `peer`: gRPC's name of the peer (TcpPeerOf).
  void AddUnadmitted(int socket, std::string peer);
  // Counts unadmitted connections with unread bytes among the newest connections, up to `max`. On a server
  // with certificates, such a connection is a handshake that the server has not begun.
  int UnreadHandshakes(int max);
  // Call this when a call of this peer was admitted. Cheap.
  void Admitted(std::string_view peer);
  // Shuts down the oldest unadmitted connection that is at least this old; gRPC then closes it. False if
  // there is none.
  bool EndOldestUnadmitted(absl::Duration age);

 private:
  struct Connection {
    int socket;
    std::pair<dev_t, ino_t> inode;  // the kernel numbers sockets consecutively, and starts over after 2^32
  };
  struct UnadmittedConnection {
    uint64_t id;
    Connection connection;
    std::string peer;
    SteadyTime since;
  };

  void Sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Marks the connection's peer as admitted or gone. False if the peer was already marked.
  bool Forget(const UnadmittedConnection& one) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int max_connections_;
  absl::Mutex mutex_;
  std::vector<Connection> connections_ ABSL_GUARDED_BY(mutex_);
  size_t next_sampled_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<UnadmittedConnection> unadmitted_
      ABSL_GUARDED_BY(mutex_);  // oldest first; some have made a call or are closed
  // Peers that have made no call, each with its latest connection.
  absl::flat_hash_map<std::string, uint64_t> strange_peers_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_unadmitted_ ABSL_GUARDED_BY(mutex_) = 0;
  SteadyTime next_sweep_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
};

// The peer of a TCP connection in the form of grpc::ServerContext::peer(): "ipv4:10.0.0.1:7000". Empty for
// any other socket.
std::string TcpPeerOf(int socket);

}  // namespace tensorcast::rpc
