// One thread that runs tasks and timers: the only loop of this kind. What several threads report to one place
// in order, what is done again and again, and what a transport's connections live on, each has one.
//
// Threading: Post, Run, Every and OnThread are thread-safe. `queue`'s timers belong to the loop's thread:
// only tasks touch them. Tasks run one at a time, in the order in which they were posted, with no lock held;
// a task may block, and delays all that come after it.
//
// Deadlines: a task has none, and the queue is unbounded: the code that posts bounds the number and the
// duration of its tasks. A timer runs at its time or, behind other tasks, later; never earlier.
//
// Shutdown: Stop, or the destructor, runs what was posted before and joins the thread, so it waits for these
// tasks. What is left then is destroyed without being run: timers, and tasks that were posted later, also by
// the last tasks themselves.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "base/task_queue.h"

namespace tensorcast {

class TaskLoop {
 public:
  // How the loop's thread waits when it has nothing to run.
  class Waiter {
   public:
    virtual ~Waiter() = default;
    // On the loop's thread. Returns at `until` at the latest (or soon after), and when Wake was called since
    // the previous Wait returned. It may return early.
    virtual void Wait(SteadyTime until) = 0;
    // On any thread, at any time while the loop lives.
    virtual void Wake() = 0;
  };

  // Starts the thread. `name`: the thread's, at most 15 characters. `waiter` must outlive the loop; null
  // waits for tasks and timers alone.
  explicit TaskLoop(const std::string& name = "", Waiter* waiter = nullptr);
  // A loop that calls `task` after every `interval`, counted from the end of the previous call. Destroying it
  // waits for a call that runs.
  static std::unique_ptr<TaskLoop> Every(absl::Duration interval, absl::AnyInvocable<void()> task);
  // As Stop. REQUIRES: not on the loop's thread, unless it was stopped before.
  ~TaskLoop();
  TaskLoop(const TaskLoop&) = delete;
  TaskLoop& operator=(const TaskLoop&) = delete;

  void Post(TaskQueue::Task task) { queue_.Post(std::move(task)); }
  // Runs `task` on the loop and waits for it, and so for all that was posted before; at once when this is the
  // loop's thread. REQUIRES: not stopped.
  void Run(absl::FunctionRef<void()> task);
  bool OnThread() const { return std::this_thread::get_id() == thread_.get_id(); }

  // For tasks: its timers.
  TaskQueue& queue() { return queue_; }

  // Ends the thread. Further calls do nothing. REQUIRES: not on the loop's thread; one call at a time.
  void Stop();

 private:
  void Repeat(absl::Duration interval, absl::AnyInvocable<void()> task);
  void Loop();

  const std::unique_ptr<Waiter> own_waiter_;  // where none was given
  Waiter& waiter_;
  TaskQueue queue_;
  bool stop_ = false;   // the loop thread's
  std::thread thread_;  // last: it uses the rest
};

}  // namespace tensorcast
