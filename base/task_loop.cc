#include "base/task_loop.h"

#include <pthread.h>

#include "absl/base/thread_annotations.h"
#include "absl/log/check.h"
#include "absl/synchronization/mutex.h"

namespace tensorcast {
namespace {

class ConditionWaiter final : public TaskLoop::Waiter {
 public:
  void Wait(SteadyTime until) override {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&awake_), TimeLeft(until));
    awake_ = false;
  }
  void Wake() override {
    absl::MutexLock lock(&mutex_);
    awake_ = true;
  }

 private:
  absl::Mutex mutex_;
  // Kept until the next Wait: what is posted between a look at the queue and the wait is not missed.
  bool awake_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

TaskLoop::TaskLoop(const std::string& name, Waiter* waiter)
    : own_waiter_(waiter == nullptr ? std::make_unique<ConditionWaiter>() : nullptr),
      waiter_(waiter == nullptr ? *own_waiter_ : *waiter),
      queue_([this] { waiter_.Wake(); }),
      thread_([this] { Loop(); }) {
  if (!name.empty()) pthread_setname_np(thread_.native_handle(), name.c_str());
}

TaskLoop::~TaskLoop() { Stop(); }

std::unique_ptr<TaskLoop> TaskLoop::Every(absl::Duration interval, absl::AnyInvocable<void()> task) {
  auto loop = std::make_unique<TaskLoop>();
  // The first timer is set by a task, since only the loop's thread may touch its timers.
  loop->Post([raw = loop.get(), interval, task = std::move(task)]() mutable {
    raw->Repeat(interval, std::move(task));
  });
  return loop;
}

// The next timer is set when the call has returned, so that calls that take long do not pile up.
void TaskLoop::Repeat(absl::Duration interval, absl::AnyInvocable<void()> task) {
  queue_.At(SteadyNow() + interval, [this, interval, task = std::move(task)]() mutable {
    task();
    Repeat(interval, std::move(task));
  });
}

void TaskLoop::Run(absl::FunctionRef<void()> task) {
  if (OnThread()) {
    task();
  } else {
    queue_.PostAndWait(task);
  }
}

// The end is a task like the others, so that all that was posted before it runs.
void TaskLoop::Stop() {
  if (!thread_.joinable()) return;
  CHECK(!OnThread()) << "a task loop was stopped on its own thread";
  Post([this] { stop_ = true; });
  thread_.join();
  // What the last tasks posted is dropped, and what is posted from now on, too.
  queue_.Close();
}

void TaskLoop::Loop() {
  while (true) {
    // Tasks come before timers, so that Stop does not wait for a timer. The waiter remembers a Wake that
    // comes between RunPosted and Wait.
    queue_.RunPosted();
    if (stop_) return;
    queue_.RunTimers(SteadyNow());
    waiter_.Wait(queue_.next_timer());
  }
}

}  // namespace tensorcast
