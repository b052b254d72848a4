#include "base/task_queue.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"

namespace tensorcast::task_queue_test {
namespace {

TEST(TaskQueue, PostedTasks_RunInOrderAndWakeTheOwner) {
  int wakes = 0;
  std::vector<int> ran;
  TaskQueue queue([&] { ++wakes; });
  queue.Post([&] { ran.push_back(1); });
  queue.Post([&] { ran.push_back(2); });
  EXPECT_EQ(wakes, 2);
  EXPECT_TRUE(queue.HasPosted());
  EXPECT_TRUE(queue.RunPosted());
  EXPECT_EQ(ran, (std::vector<int>{1, 2}));
  EXPECT_FALSE(queue.RunPosted());
}

TEST(TaskQueue, TaskPostedByTask_RunsInNextRound) {
  TaskQueue queue([] {});
  int rounds = 0;
  queue.Post([&] { queue.Post([&] { ++rounds; }); });
  queue.RunPosted();
  EXPECT_EQ(rounds, 0);
  queue.RunPosted();
  EXPECT_EQ(rounds, 1);
}

TEST(TaskQueue, PostAndWait_ReturnsAfterTheTaskRan) {
  absl::Notification posted;
  TaskQueue queue([&] { posted.Notify(); });
  bool ran = false;
  std::thread waiting([&] {
    queue.PostAndWait([&] { ran = true; });
    EXPECT_TRUE(ran);
  });
  posted.WaitForNotification();
  EXPECT_FALSE(ran);
  EXPECT_TRUE(queue.RunPosted());
  waiting.join();
}

TEST(TaskQueue, Timer_RunsWhenDueUnlessCancelled) {
  TaskQueue queue([] {});
  const SteadyTime t = SteadyTime();
  std::vector<int> ran;
  queue.At(t + absl::Seconds(2), [&] { ran.push_back(2); });
  queue.At(t + absl::Seconds(1), [&] { ran.push_back(1); });
  const TaskQueue::TimerId cancelled = queue.At(t + absl::Seconds(1), [&] { ran.push_back(9); });
  EXPECT_EQ(queue.next_timer(), t + absl::Seconds(1));
  queue.CancelTimer(cancelled);
  EXPECT_FALSE(queue.RunTimers(t));
  EXPECT_TRUE(queue.RunTimers(t + absl::Seconds(1)));
  EXPECT_EQ(ran, (std::vector<int>{1}));
  EXPECT_TRUE(queue.RunTimers(t + absl::Seconds(5)));
  EXPECT_EQ(ran, (std::vector<int>{1, 2}));
  EXPECT_EQ(queue.next_timer(), SteadyTime::InfiniteFuture());
}

TEST(TaskQueue, ClosedTaskQueue_DropsTasksAndTimers) {
  TaskQueue queue([] {});
  int ran = 0;
  queue.Post([&] { ++ran; });
  queue.At(SteadyTime(), [&] { ++ran; });
  queue.Close();
  queue.Post([&] { ++ran; });
  EXPECT_FALSE(queue.RunPosted());
  EXPECT_FALSE(queue.RunTimers(SteadyTime::InfiniteFuture()));
  EXPECT_EQ(ran, 0);
}

TEST(TaskQueue, TimerInInfiniteFuture_IsNotStored) {
  TaskQueue queue([] {});
  EXPECT_EQ(queue.At(SteadyTime::InfiniteFuture(), [] {}), TaskQueue::kNoTimer);
  EXPECT_FALSE(queue.has_timers());
}

}  // namespace
}  // namespace tensorcast::task_queue_test
