// The connections passed to gRPC that are still open. gRPC owns their descriptors and does not report when it
// closes one, but the kernel tells whether a descriptor is still the same socket.
//
// A TCP connection is unadmitted until a call on it was admitted; the oldest unadmitted connection is ended
// when there is no room for another one. Internal to this folder; thread-safe.
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

  // Whether one more connection would be too many. Checking thousands of connections takes a while: when it
  // found none closed, it is not repeated for a multiple of the time that it took.
  bool Full();
  void Add(int socket);
  // The number of open connections.
  int Count();
  // The share of connections, by a sample, with bytes that wait to be read: almost none if the server keeps
  // up. Zero if there are few connections, where a share would mean nothing.
  double UnreadShare();

  // Adds a TCP connection of this peer, by gRPC's name for it (TcpPeerOf); it is unadmitted at first.
  void AddUnadmitted(int socket, std::string peer);
  // How many of the newest unadmitted connections have bytes that wait to be read, counted up to `max`: on a
  // server with certificates each is a handshake that the server has not begun.
  int UnreadHandshakes(int max);
  // A call of this peer was admitted. Cheap: called for each call.
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
  // False if it was no longer unadmitted.
  bool Forget(const UnadmittedConnection& one) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int max_connections_;
  absl::Mutex mutex_;
  std::vector<Connection> connections_ ABSL_GUARDED_BY(mutex_);
  size_t next_sampled_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<UnadmittedConnection> unadmitted_
      ABSL_GUARDED_BY(mutex_);  // oldest first; some have made a call, or closed
  // Peers that have made no call, each with its latest connection.
  absl::flat_hash_map<std::string, uint64_t> strange_peers_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_unadmitted_ ABSL_GUARDED_BY(mutex_) = 0;
  SteadyTime next_sweep_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
};

// The peer of a TCP connection in the form of grpc::ServerContext::peer(): "ipv4:10.0.0.1:7000". Empty for
// any other socket.
std::string TcpPeerOf(int socket);

}  // namespace tensorcast::rpc
