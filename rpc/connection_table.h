// Which of the connections that were handed to gRPC are still open. gRPC owns their descriptors and tells
// nobody when it closes one; but the kernel says whether a descriptor is still the socket that it was.
// Internal to this folder; thread-safe.
#pragma once

#include <sys/types.h>

#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
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
  // The share of them, by a sample, whose bytes wait to be read: of a server that keeps up next to none. Zero
  // where there are few connections, of which it would say nothing.
  double UnreadShare();

 private:
  struct Connection {
    int socket;
    std::pair<dev_t, ino_t>
        inode;  // the kernel numbers sockets one after another, and begins anew after 2^32
  };

  void Sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int max_connections_;
  absl::Mutex mutex_;
  std::vector<Connection> connections_ ABSL_GUARDED_BY(mutex_);
  size_t next_sampled_ ABSL_GUARDED_BY(mutex_) = 0;
  SteadyTime next_sweep_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
};

}  // namespace tensorcast::rpc
