// Whether this node's advertised port answers, seen as others see it: by a new connection to the address that
// they are told, in the rhythm of heartbeats and on a thread of its own, so that no heartbeat waits for it.
//
// A daemon can be heard by the global store while no peer reaches it (its descriptors are used up, a firewall
// lies between, the name that it advertises is another host's). It says so itself, and is not offered then.
// Thread-safe.
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

  // Several checks in a row had no answer. One answer ends it.
  bool unreachable() const { return unreachable_; }

 private:
  void Look();

  const std::string address_;
  const Check check_;
  int failures_ = 0;  // in a row; the thread's
  std::atomic<bool> unreachable_ = false;
  std::unique_ptr<TaskLoop> looks_;  // last: it uses the others
};

}  // namespace tensorcast::daemon
