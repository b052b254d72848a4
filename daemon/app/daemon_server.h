// A store daemon: every part of one node, wired together and serving.
//
// Owns its parts and all of their threads. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/engine/engine.h"
#include "core/memory/host_pool.h"
#include "daemon/app/daemon_options.h"

namespace tensorcast::daemon {

class DaemonServer {
 public:
  // Returns once it serves. It registers with the global store in the background, and does what it can until
  // then. FAILED_PRECONDITION when another daemon uses the state directory; RESOURCE_EXHAUSTED when the pool
  // does not fit.
  static absl::StatusOr<std::unique_ptr<DaemonServer>> Start(DaemonOptions options);
  virtual ~DaemonServer() = default;  // Shutdown, at once

  // Where it serves gRPC: host:port first, if it listens there, then the unix socket.
  virtual const std::vector<std::string>& addresses() const = 0;
  virtual const std::string& handle_socket() const = 0;
  virtual const std::string& node_id() const = 0;

  // OK once the global store knows this node; UNAVAILABLE when it does not by then.
  virtual absl::Status WaitRegistered(absl::Time deadline) = 0;

  // Takes no new work, lets transfers that run (its own, and those it serves) end until the deadline, tells
  // the global store, then stops. Idempotent.
  virtual void Shutdown(absl::Time deadline) = 0;

  // For tests and for the process's own metrics.
  virtual StoreEngine& engine() = 0;
  virtual HostPool& host_pool() = 0;
};

}  // namespace tensorcast::daemon
