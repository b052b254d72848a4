// The source's side of the lane: the listener, pending connections until they have named their pull, and the
// servings that they may ask for.
//
// A connection is pending until its HELLO has come. There are at most so many, each for a few seconds
// and without a buffer of more than one frame; when one more comes, the one that has been silent for longest
// goes. So a flood of the port costs a known amount and keeps no receiver out: a HELLO follows at once.
//
// Add, Find and Revoke are thread-safe; pending connections belong to the first loop.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/address.h"
#include "base/posix/process_limits.h"
#include "base/posix/unique_fd.h"
#include "transport/serving.h"
#include "transport/tcp/io_loop.h"
#include "transport/tcp/socket.h"
#include "transport/pull/source_connection.h"

namespace tensorcast::transport::tcp {

class TcpSource : private IoLoop::Handler {
 public:
  struct Options {
    SocketOptions socket;
    std::shared_ptr<const security::Identity> identity;  // for TLS; null: without
    SourceLimits limits;
    size_t max_pending_connections = 64;
    absl::Duration hello_timeout = absl::Seconds(5);
    int serving_threads = 4;
  };

  // The loops, of which there is at least one, must outlive it.
  TcpSource(std::vector<IoLoop*> loops, const Options& options);
  // REQUIRES: shut down, and every serving revoked.
  ~TcpSource() override;

  // Serves every client that connects to it; returns the port.
  absl::StatusOr<uint16_t> Listen(const SocketAddress& address);
  // Stops listening and lets pending connections go.
  void Shutdown();

  void Add(const std::shared_ptr<SourceServing>& serving) ABSL_LOCKS_EXCLUDED(mutex_);
  // No connection finds it any more, and nothing reads its image when this returns.
  void Revoke(SourceServing& serving) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class PendingConnection;

  void OnReady(uint32_t events) override;
  // False when there was none to accept.
  bool AcceptOne();
  void OutOfDescriptors();
  void WatchListener();
  // Destroys it.
  void Forget(PendingConnection* pending);
  // Hands its connection to a loop. An error is what the pending connection is told.
  absl::Status Admit(PendingConnection& pending, const Hello& hello) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::vector<IoLoop*> loops_;
  const Options options_;
  ServingThreads threads_;
  UniqueFd listener_;
  std::optional<IoLoop::WatchId> watch_;
  SpareDescriptor spare_;
  std::list<std::unique_ptr<PendingConnection>> pending_;  // the first to come is at the front
  size_t next_loop_ = 0;
  absl::Mutex mutex_;
  absl::flat_hash_map<PullId, std::shared_ptr<SourceServing>> servings_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::transport::tcp
