// One thread that runs tasks and timers.
//
// Threading: Post, Run, Every and OnThread are thread-safe. Only tasks may touch the timers of `queue`. Tasks
// run one at a time, in the order in which they were posted, with no lock held. A task that blocks delays all
// later tasks.
//
// Deadlines: a task has no deadline, and the queue is unbounded. The posting code must limit the number and
// the duration of its tasks. A timer never runs early; it may run late, behind other tasks.
//
// Shutdown: Stop (and the destructor) waits until all tasks that were posted earlier have run, and joins the
// thread. Tasks that are posted later, and the remaining timers, may be destroyed without being run.
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
    // Called on the loop's thread. Blocks until `until`, or until Wake is called. Returns at once if Wake was
    // called since the previous Wait returned. May also return early.
    virtual void Wait(SteadyTime until) = 0;
    // May be called on any thread, at any time while the loop lives.
    virtual void Wake() = 0;
  };

  // Starts the thread. `name` is the thread's name, at most 15 characters. `waiter` must outlive the loop.
  // With null the loop waits only for tasks and timers.
  explicit TaskLoop(const std::string& name = "", Waiter* waiter = nullptr);
  // A loop that calls `task` after every `interval`, counted from the end of the previous call. The
  // destructor waits for a running call.
  static std::unique_ptr<TaskLoop> Every(absl::Duration interval, absl::AnyInvocable<void()> task);
  // Calls Stop. REQUIRES: not on the loop's thread, unless the loop was stopped before.
  ~TaskLoop();
  TaskLoop(const TaskLoop&) = delete;
  TaskLoop& operator=(const TaskLoop&) = delete;

  void Post(TaskQueue::Task task) { queue_.Post(std::move(task)); }
  // Runs `task` on the loop's thread after all tasks posted earlier, and waits until `task` has run. On the
  // loop's thread, runs `task` at once. REQUIRES: not stopped.
  void Run(absl::FunctionRef<void()> task);
  bool OnThread() const { return std::this_thread::get_id() == thread_.get_id(); }

  // Tasks use the queue to set timers.
  TaskQueue& queue() { return queue_; }

  // Ends the thread (see above). Further calls do nothing. REQUIRES: not on the loop's thread; one call at a
  // time.
  void Stop();

 private:
  void Repeat(absl::Duration interval, absl::AnyInvocable<void()> task);
  void Loop();

  const std::unique_ptr<Waiter> own_waiter_;  // the default, if the caller passed no waiter
  Waiter& waiter_;
  TaskQueue queue_;
  bool stop_ = false;   // touched by the loop's thread only
  std::thread thread_;  // declared last: the thread uses the other members
};

}  // namespace tensorcast
