#include "base/task_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

namespace tensorcast::task_loop_test {
namespace {

using ::testing::ElementsAre;

TEST(TaskLoop, DestroyedLoop_RanPostedTasksInOrder) {
  std::vector<int> order;  // of the loop's thread alone until it has ended
  {
    TaskLoop loop;
    for (int i = 0; i < 100; ++i) loop.Post([&order, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(TaskLoop, Run_WaitsForTasksPostedBefore) {
  TaskLoop loop;
  bool ran = false;
  loop.Post([&ran] { ran = true; });
  loop.Run([] {});
  EXPECT_TRUE(ran);
}

TEST(TaskLoop, RunWithinTask_RunsAtOnce) {
  TaskLoop loop;
  std::vector<int> order;
  loop.Run([&] {
    EXPECT_TRUE(loop.OnThread());
    loop.Run([&] { order.push_back(1); });
    order.push_back(2);
  });
  EXPECT_FALSE(loop.OnThread());
  EXPECT_THAT(order, ElementsAre(1, 2));
}

TEST(TaskLoop, Timer_RunsWhileLoopHasNoTasks) {
  absl::Notification ran;
  TaskLoop loop;
  loop.Post([&] { loop.queue().At(SteadyNow() + absl::Milliseconds(1), [&ran] { ran.Notify(); }); });
  ran.WaitForNotification();
}

// What a task captured may hold memory or a connection, so it goes when the task has run, not when those
// beside it have.
TEST(TaskLoop, FinishedTask_ReleasesItsCapturesBeforeNextRuns) {
  absl::Notification blocked;
  absl::Notification proceed;
  TaskLoop loop;
  loop.Post([&] {
    blocked.Notify();
    proceed.WaitForNotification();
  });
  blocked.WaitForNotification();
  auto captured = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = captured;
  bool released = false;
  loop.Post([captured = std::move(captured)] {});
  loop.Post([&] { released = watch.expired(); });
  proceed.Notify();
  loop.Stop();
  EXPECT_TRUE(released);
}

TEST(TaskLoop, StoppedLoop_DropsTimersAndLaterTasks) {
  auto token = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = token;
  int ran = 0;
  TaskLoop loop("tc-test");
  loop.Post([&loop, &ran, token = std::move(token)] {
    loop.queue().At(SteadyNow() + absl::Hours(1), [&ran, token] { ++ran; });
  });
  loop.Stop();
  EXPECT_TRUE(watch.expired());
  loop.Post([&ran] { ++ran; });
  loop.Stop();
  EXPECT_EQ(ran, 0);
}

TEST(TaskLoop, Every_RepeatsUntilDestroyed) {
  absl::Mutex mutex;
  int runs = 0;
  {
    const std::unique_ptr<TaskLoop> loop = TaskLoop::Every(absl::Milliseconds(1), [&] {
      absl::MutexLock lock(&mutex);
      ++runs;
    });
    absl::MutexLock lock(&mutex);
    mutex.Await(absl::Condition(+[](int* count) { return *count >= 3; }, &runs));
  }
  const int at_end = runs;
  std::this_thread::yield();
  EXPECT_EQ(runs, at_end);
}

TEST(TaskLoop, EveryWithLongInterval_EndsAtOnce) {
  const std::unique_ptr<TaskLoop> loop = TaskLoop::Every(absl::Hours(1), [] { FAIL(); });
}

// A waiter that tells when the loop waits.
class ObservedWaiter final : public TaskLoop::Waiter {
 public:
  explicit ObservedWaiter(absl::Notification* waits) : waits_(*waits) {}
  void Wait(SteadyTime until) override {
    EXPECT_EQ(until, SteadyTime::InfiniteFuture());
    absl::MutexLock lock(&mutex_);
    if (!waits_.HasBeenNotified()) waits_.Notify();
    mutex_.Await(absl::Condition(&awake_));
    awake_ = false;
  }
  void Wake() override {
    absl::MutexLock lock(&mutex_);
    awake_ = true;
  }

 private:
  absl::Notification& waits_;
  absl::Mutex mutex_;
  bool awake_ ABSL_GUARDED_BY(mutex_) = false;
};

TEST(TaskLoop, LoopInItsOwnWaiter_IsWokenByTask) {
  absl::Notification waits;
  ObservedWaiter waiter(&waits);
  TaskLoop loop("", &waiter);
  waits.WaitForNotification();
  bool ran = false;
  loop.Run([&ran] { ran = true; });
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace tensorcast::task_loop_test
