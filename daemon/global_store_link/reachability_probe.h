// Checks periodically whether other hosts can reach this node: connects to the node's advertised address. Has
// its own thread. Thread-safe.
//
// A daemon may reach the global store although no peer can reach the daemon, for example behind a firewall.
// The global store does not offer an unreachable daemon as a source.
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

  // Starts the thread. The destructor waits for a running check.
  ReachabilityProbe(std::string address, absl::Duration interval, Check check);

  // True after several checks in a row without an answer, until the next answer.
  bool unreachable() const { return unreachable_; }

 private:
  void Look();

  const std::string address_;
  const Check check_;
  int failures_ = 0;  // in a row; used on the thread only
  std::atomic<bool> unreachable_ = false;
  std::unique_ptr<TaskLoop> looks_;  // last: its thread uses the other members
};

}  // namespace tensorcast::daemon
