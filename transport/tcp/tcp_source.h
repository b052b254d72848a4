// The source's side of the lane: the listener, and pending connections until they have named their pull.
//
// A connection is pending until its HELLO has come. There are at most so many, each for a few seconds
// and without a buffer of more than one frame; when one more comes, the one that has been silent for longest
// goes. So a flood of the port costs a known amount and keeps no receiver out: a HELLO follows at once.
//
// Belongs to the first loop, but for the constructor and what says otherwise.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/address.h"
#include "base/posix/process_limits.h"
#include "base/posix/unique_fd.h"
#include "base/rate_limit.h"
#include "transport/pull/pull_source.h"
#include "transport/tcp/byte_stream.h"
#include "transport/tcp/io_loop.h"
#include "transport/tcp/socket.h"

namespace tensorcast::transport::tcp {

class TcpSource : private IoLoop::Handler {
 public:
  struct Options {
    SocketOptions socket;
    std::shared_ptr<const security::Identity> identity;  // for TLS; null: without
    RateLimit* send_limit = nullptr;                     // of all that is sent; null: none. Outlives this
    size_t max_pending_connections = 64;
    absl::Duration hello_timeout = absl::Seconds(5);
  };

  // The loops, of which there is at least one, and the source must outlive it.
  TcpSource(std::vector<IoLoop*> loops, pull::PullSource* source, const Options& options);
  // REQUIRES: shut down.
  ~TcpSource() override;

  // Thread-safe. Serves every client that connects to it; returns the port.
  absl::StatusOr<uint16_t> Listen(const SocketAddress& address);
  // Thread-safe. Stops listening and lets pending connections go.
  void Shutdown();

 private:
  class PendingConnection;

  void OnReady(uint32_t events) override;
  // False when there was none to accept.
  bool AcceptOne();
  void OutOfDescriptors();
  void WatchListener();
  void WatchListenerLater();
  // Destroys it.
  void Forget(PendingConnection* pending);
  // Hands its connection to a loop. An error is what the pending connection is told.
  absl::Status Admit(PendingConnection& pending, const pull::Hello& hello);

  const std::vector<IoLoop*> loops_;
  pull::PullSource* const source_;
  const Options options_;
  UniqueFd listener_;
  std::optional<IoLoop::WatchId> watch_;
  TaskQueue::TimerId watch_timer_ = TaskQueue::kNoTimer;  // while the listener is not watched
  SpareDescriptor spare_;
  std::list<std::unique_ptr<PendingConnection>> pending_;  // the first to come is at the front
  size_t next_loop_ = 0;
};

}  // namespace tensorcast::transport::tcp
