// Work on a thread of its own: the same task again and again, or small jobs one after the other.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tensorcast {

// Calls a function after every `interval`, counted from the end of the call before, until it is destroyed.
class PeriodicTask {
 public:
  PeriodicTask(absl::Duration interval, std::function<void()> task);
  // Waits for a running call to end.
  ~PeriodicTask();

  PeriodicTask(const PeriodicTask&) = delete;
  PeriodicTask& operator=(const PeriodicTask&) = delete;

 private:
  void Loop(absl::Duration interval, const std::function<void()>& task);

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Runs jobs in their order, for work that no caller waits for. The queue is unbounded and a job may take any
// time: the code that adds jobs bounds their number and their duration. Thread-safe.
class SerialExecutor {
 public:
  SerialExecutor();
  // Runs what is queued, then ends.
  ~SerialExecutor();

  void Run(std::function<void()> job);
  // Blocks until everything queued before this call was run. Not for a job itself.
  void Flush();

 private:
  void Loop();

  absl::Mutex mutex_;
  std::deque<std::function<void()>> jobs_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tensorcast
