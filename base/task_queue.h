// Tasks for the one thread that owns some state: any thread posts tasks, and the owner sets timers. A
// TaskLoop (base/task_loop.h) is a thread that only runs such a queue.
//
// Post and PostAndWait are thread-safe; all other functions belong to the owner thread. Tasks run in the
// order in which they were posted, with no lock held. The owner chooses how it sleeps; `wake` tells the owner
// that a task was posted.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast {

class TaskQueue {
 public:
  using Task = absl::AnyInvocable<void()>;
  using TimerId = std::pair<SteadyTime, uint64_t>;
  static constexpr TimerId kNoTimer{SteadyTime::InfinitePast(), 0};

  // The queue may call `wake` on any thread, with no lock held.
  explicit TaskQueue(std::function<void()> wake);
  // Destroys the tasks that have not run.
  ~TaskQueue() = default;

  void Post(Task task) ABSL_LOCKS_EXCLUDED(mutex_);
  // Posts a task and waits until the task has run. REQUIRES: the caller is not on the owner thread; the owner
  // thread still runs tasks; the queue is not closed.
  void PostAndWait(absl::FunctionRef<void()> task) ABSL_LOCKS_EXCLUDED(mutex_);
  // Destroys all posted tasks and timers, and every task that is posted later.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  // Runs `task` at `when` or soon after; never for SteadyTime::InfiniteFuture().
  TimerId At(SteadyTime when, Task task);
  void CancelTimer(TimerId id) { timers_.erase(id); }
  bool has_timers() const { return !timers_.empty(); }
  // The time of the first timer; SteadyTime::InfiniteFuture() when there is none.
  SteadyTime next_timer() const;

  // Runs the tasks that were posted before the call. True when any ran.
  bool RunPosted() ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs the timers that are due at `now`. True when any ran.
  bool RunTimers(SteadyTime now);
  bool HasPosted() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const std::function<void()> wake_;
  absl::Mutex mutex_;
  std::vector<Task> posted_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<TimerId, Task> timers_;
  uint64_t timers_made_ = 0;
};

}  // namespace tensorcast
