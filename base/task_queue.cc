#include "base/task_queue.h"

#include <utility>

#include "absl/synchronization/notification.h"

namespace tensorcast {

TaskQueue::TaskQueue(std::function<void()> wake) : wake_(std::move(wake)) {}

void TaskQueue::Post(Task task) {
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    posted_.push_back(std::move(task));
  }
  // Without the lock: to wake the owner may take a lock of the owner's.
  wake_();
}

// The task refers to this stack, which stays until the task has run. On the owner thread, or after Close, it
// would never run.
void TaskQueue::PostAndWait(absl::FunctionRef<void()> task) {
  absl::Notification done;
  Post([&] {
    task();
    done.Notify();
  });
  done.WaitForNotification();
}

void TaskQueue::Close() {
  // Destroyed without the lock: what a task captured may call this queue.
  std::vector<Task> dropped;
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    dropped.swap(posted_);
  }
  timers_.clear();
}

TaskQueue::TimerId TaskQueue::At(SteadyTime when, Task task) {
  if (when == SteadyTime::InfiniteFuture()) return kNoTimer;
  // The number tells timers of one moment apart, and runs them in the order in which they were set.
  const TimerId id{when, ++timers_made_};
  timers_.emplace(id, std::move(task));
  return id;
}

SteadyTime TaskQueue::next_timer() const {
  return timers_.empty() ? SteadyTime::InfiniteFuture() : timers_.begin()->first.first;
}

bool TaskQueue::RunPosted() {
  // One batch: what these tasks post waits for the next call, so that the owner comes to its timers.
  std::vector<Task> tasks;
  {
    absl::MutexLock lock(&mutex_);
    tasks.swap(posted_);
  }
  for (Task& task : tasks) {
    task();
    task = nullptr;  // what it captured may be memory or a lease: not kept while the others run
  }
  return !tasks.empty();
}

bool TaskQueue::RunTimers(SteadyTime now) {
  bool ran = false;
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    // The timer leaves the map before it runs, since it may set and cancel timers.
    Task task = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    task();
    ran = true;
  }
  return ran;
}

bool TaskQueue::HasPosted() {
  absl::MutexLock lock(&mutex_);
  return !posted_.empty();
}

}  // namespace tensorcast
