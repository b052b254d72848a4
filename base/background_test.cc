#include "base/background.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace tensorcast {
namespace {

TEST(PeriodicTask, RunsUntilItIsDestroyed) {
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

TEST(PeriodicTask, ALongIntervalDoesNotDelayItsEnd) {
  const PeriodicTask task(absl::Hours(1), [] {});
}

TEST(SerialExecutor, RunsJobsInTheirOrderAndTheQueuedOnesBeforeItEnds) {
  std::vector<int> order;  // of the executor's thread alone until it has ended
  {
    SerialExecutor executor;
    for (int i = 0; i < 100; ++i) executor.Run([&order, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(SerialExecutor, FlushWaitsForWhatWasQueuedBefore) {
  bool ran = false;
  SerialExecutor executor;
  executor.Run([&ran] { ran = true; });
  executor.Flush();
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace tensorcast
