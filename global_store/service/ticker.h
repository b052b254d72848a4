// Calls a function every so often on a thread of its own, until destroyed.
#pragma once

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tensorcast::global_store {

class Ticker {
 public:
  Ticker(absl::Duration interval, std::function<void()> tick);
  // Waits for a running call to end.
  ~Ticker();

  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  void Run(absl::Duration interval, const std::function<void()>& tick);

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tensorcast::global_store
