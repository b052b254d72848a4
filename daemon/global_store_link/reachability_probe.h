// Checks whether other hosts can reach this node: at the interval of heartbeats it makes a new connection to
// the node's own advertised address. It does so on a thread of its own, so that no heartbeat waits for it.
//
// The global store may hear a daemon that no peer can reach: its descriptors are used up, a firewall blocks
// the port, or the advertised name belongs to another host. Such a daemon reports that it is unreachable, and
// the global store does not offer it as a source. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/task_loop.h"

namespace tensorcast::daemon {

class ReachabilityProbe {
 public:
  // Connects to an address and asks whether it serves.
  using Check = std::function<absl::Status(const std::string& address)>;

  // Starts the thread. Destroying the probe waits for a check that runs.
  ReachabilityProbe(std::string address, absl::Duration interval, Check check);

  // True after several checks in a row without an answer, until the next answer.
  bool unreachable() const { return unreachable_; }

 private:
  void Look();

  const std::string address_;
  const Check check_;
  int failures_ = 0;  // in a row; used on the thread only
  std::atomic<bool> unreachable_ = false;
  std::unique_ptr<TaskLoop> looks_;  // last: it uses the other members
};

}  // namespace tensorcast::daemon
