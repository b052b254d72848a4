// Small jobs that must be done but that nobody waits for: telling the global store how a transfer ended,
// closing a pull at its source. Run in order by one thread; jobs bound themselves with a deadline.
// Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tensorcast::daemon {

class Errands {
 public:
  Errands();
  // Runs what is queued, then ends.
  ~Errands();

  void Run(std::function<void()> job);
  // Blocks until everything queued before this call was run.
  void Flush();

 private:
  void Loop();

  absl::Mutex mutex_;
  std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tensorcast::daemon
