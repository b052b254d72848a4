// Whether this node's advertised port answers, seen as others see it: by a new connection to the address that
// they are told, in the rhythm of heartbeats and on a thread of its own, so that no heartbeat waits for it.
//
// A daemon can be heard by the global store while no peer reaches it (its descriptors are used up, a firewall
// lies between, the name that it advertises is another host's). It says so itself, and is not offered then.
// Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace tensorcast::daemon {

class ReachabilityProbe {
 public:
  // Connects to an address and asks whether it serves.
  using Check = std::function<absl::Status(const std::string& address)>;

  // Starts the thread.
  ReachabilityProbe(std::string address, absl::Duration interval, Check check);
  // Waits for a check that runs.
  ~ReachabilityProbe();

  // Several checks in a row had no answer. One answer ends it.
  bool unreachable() const { return unreachable_; }

 private:
  void Run();
  void Look();

  const std::string address_;
  const absl::Duration interval_;
  const Check check_;
  int failures_ = 0;  // in a row; the thread's
  std::atomic<bool> unreachable_ = false;
  absl::Notification stop_;
  std::thread thread_;
};

}  // namespace tensorcast::daemon
