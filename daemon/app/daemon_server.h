// A store daemon: all parts of one node.
//
// Owns its parts and all of their threads. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/engine/engine.h"
#include "core/memory/host_pool.h"
#include "daemon/app/daemon_options.h"

namespace tensorcast::daemon {

class DaemonServer {
 public:
  // Returns when the daemon serves. The daemon registers with the global store in the background.
  // INVALID_ARGUMENT when a required option is missing; FAILED_PRECONDITION when another daemon uses the
  // state directory; RESOURCE_EXHAUSTED when the pool does not fit in the host's memory.
  static absl::StatusOr<std::unique_ptr<DaemonServer>> Start(DaemonOptions options);
  ~DaemonServer();  // calls Shutdown with a deadline that has passed

  // The addresses of the gRPC server: host:port, if configured, and then the unix socket of the daemon's own
  // user.
  const std::vector<std::string>& addresses() const;
  // The paths of the sockets for clients: gRPC with the client role, and the handle socket.
  const std::string& client_socket() const;
  const std::string& handle_socket() const;
  const std::string& node_id() const;

  // Blocks until the global store knows this node. UNAVAILABLE if the node is not registered by `deadline`.
  absl::Status WaitRegistered(SteadyTime deadline);

  // Refuses new work. Announces to the global store that this node drains, and waits until `deadline` for
  // running transfers to and from this node. If `deadline` has passed, skips the announcement and the wait.
  // Then stops the servers, and reports to the global store that this node has no replicas. Idempotent.
  void Shutdown(SteadyTime deadline);

  // For tests and for the process's own metrics.
  StoreEngine& engine();
  HostPool& host_pool();

 private:
  struct Parts;
  explicit DaemonServer(std::unique_ptr<Parts> parts);

  const std::unique_ptr<Parts> parts_;
  absl::Mutex shutdown_mutex_;
  bool shut_down_ ABSL_GUARDED_BY(shutdown_mutex_) = false;
};

}  // namespace tensorcast::daemon
