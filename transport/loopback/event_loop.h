// One thread that runs a TaskQueue: the loopback transport's counterpart to a UCX worker's progress thread.
// Thread-safe. Tasks that are posted after Stop are dropped.
#pragma once

#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "base/task_queue.h"

namespace tensorcast::transport {

class EventLoop {
 public:
  EventLoop();
  // REQUIRES: stopped.
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Ends the thread; what has not run is dropped. REQUIRES: called once, not on the loop's thread.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  void Post(TaskQueue::Task task) { queue_.Post(std::move(task)); }
  // Runs `task` on the loop and waits for it; at once when this is the loop's thread.
  void Run(absl::FunctionRef<void()> task);

  // For tasks, on the loop's thread.
  TaskQueue& queue() { return queue_; }

 private:
  void Wake() ABSL_LOCKS_EXCLUDED(mutex_);
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Mutex mutex_;
  bool awake_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  TaskQueue queue_;
  std::thread thread_;
};

}  // namespace tensorcast::transport
