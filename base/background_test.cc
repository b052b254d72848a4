#include "base/background.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace tensorcast {
namespace {

TEST(PeriodicTask, PeriodicTask_RunsUntilDestroyed) {
  absl::Mutex mutex;
  int runs = 0;
  {
    const PeriodicTask task(absl::Milliseconds(1), [&] {
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

TEST(PeriodicTask, PeriodicTaskWithLongInterval_EndsAtOnce) {
  const PeriodicTask task(absl::Hours(1), [] {});
}

TEST(SerialExecutor, SerialExecutor_RunsJobsInOrderBeforeItEnds) {
  std::vector<int> order;  // of the executor's thread alone until it has ended
  {
    SerialExecutor executor;
    for (int i = 0; i < 100; ++i) executor.Run([&order, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(SerialExecutor, Flush_WaitsForQueuedJobs) {
  bool ran = false;
  SerialExecutor executor;
  executor.Run([&ran] { ran = true; });
  executor.Flush();
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace tensorcast
