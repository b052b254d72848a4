// Runs a chore again and again at an interval, on a thread of its own, until it is destroyed.
#pragma once

#include <functional>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace tensorcast::daemon {

class Housekeeper {
 public:
  Housekeeper(absl::Duration interval, std::function<void()> chore)
      : thread_([this, interval, chore = std::move(chore)] {
          while (!stop_.WaitForNotificationWithTimeout(interval)) chore();
        }) {}
  ~Housekeeper() {
    stop_.Notify();
    thread_.join();
  }

 private:
  absl::Notification stop_;
  std::thread thread_;
};

}  // namespace tensorcast::daemon
