// The source's side of the lane: the listener, and the pending connections.
//
// A connection is pending until its HELLO has arrived, for at most hello_timeout. The source keeps at most
// max_pending_connections pending connections. When one more arrives, the source closes the oldest pending
// connection. So a flood of connections costs bounded memory.
//
// Belongs to the thread of the first IoLoop, except for the constructor and functions marked thread-safe.
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
    std::shared_ptr<const security::Identity> identity;  // for TLS; null: no TLS
    RateLimit* send_limit = nullptr;  // of all connections together; null: no limit. Must outlive the source
    size_t max_pending_connections = 64;
    absl::Duration hello_timeout = absl::Seconds(5);
  };

  // `loops` (at least one) and `source` must outlive this object.
  TcpSource(std::vector<IoLoop*> loops, pull::PullSource* source, const Options& options);
  // REQUIRES: Shutdown was called.
  ~TcpSource() override;

  // Thread-safe. Listens on `address` and serves the receivers that connect; returns the port. UNAVAILABLE if
  // this process cannot listen on the address.
  absl::StatusOr<uint16_t> Listen(const SocketAddress& address);
  // Thread-safe. Stops listening and closes all pending connections.
  void Shutdown();

 private:
  class PendingConnection;

  void OnReady(uint32_t events) override;
  // False if no connection was waiting.
  bool AcceptOne();
  void OutOfDescriptors();
  void WatchListener();
  void WatchListenerLater();
  // Destroys the pending connection, and closes its stream unless the stream was released.
  void Forget(PendingConnection* pending);
  // Moves the connection's stream to a loop. If Admit fails, the caller must send the error to the receiver.
  absl::Status Admit(PendingConnection& pending, const pull::Hello& hello);

  const std::vector<IoLoop*> loops_;
  pull::PullSource* const source_;
  const Options options_;
  UniqueFd listener_;
  std::optional<IoLoop::WatchId> watch_;
  TaskQueue::TimerId watch_timer_ = TaskQueue::kNoTimer;  // calls WatchListener after a pause
  SpareDescriptor spare_;
  std::list<std::unique_ptr<PendingConnection>> pending_;  // oldest first
  size_t next_loop_ = 0;
};

}  // namespace tensorcast::transport::tcp
