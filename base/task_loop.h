// One thread that runs tasks and timers; all loops in this code base use it. Its uses: to report from several
// threads to one place in order, to repeat a task, and to run the connections of a transport.
//
// Threading: Post, Run, Every and OnThread are thread-safe. The timers of `queue` belong to the loop's
// thread: only tasks touch them. Tasks run one at a time, in the order in which they were posted, with no
// lock held. A task may block and then delays all later ones.
//
// Deadlines: a task has none, and the queue is unbounded. The posting code must limit the number and the
// duration of its tasks. A timer never runs before its time; it may run later, behind other tasks.
//
// Shutdown: Stop (and the destructor) waits until all tasks that were posted before it have run, and joins
// the thread. A task that is posted later, also by one of the last tasks, may be destroyed without being run.
// The remaining timers are destroyed without being run.
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
  // Runs `task` on the loop's thread and waits for it, and thus for all tasks posted before it. On the loop's
  // thread it runs `task` at once. REQUIRES: not stopped.
  void Run(absl::FunctionRef<void()> task);
  bool OnThread() const { return std::this_thread::get_id() == thread_.get_id(); }

  // For tasks, to set timers.
  TaskQueue& queue() { return queue_; }

  // Ends the thread (see above). Further calls do nothing. REQUIRES: not on the loop's thread; one call at a
  // time.
  void Stop();

 private:
  void Repeat(absl::Duration interval, absl::AnyInvocable<void()> task);
  void Loop();

  const std::unique_ptr<Waiter> own_waiter_;  // the default, where the caller passed none
  Waiter& waiter_;
  TaskQueue queue_;
  bool stop_ = false;   // touched by the loop's thread only
  std::thread thread_;  // last: it uses the rest
};

}  // namespace tensorcast
