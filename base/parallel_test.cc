#include "base/parallel.h"

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"

namespace tensorcast::parallel_test {
namespace {

TEST(ForEachInParallel, EachIndex_IsGivenOnce) {
  for (const size_t threads : {0, 1, 3, 200}) {
    std::vector<std::atomic<int>> calls(100);
    ForEachInParallel(calls.size(), threads, [&](size_t index) { ++calls[index]; });
    for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 1) << threads;
  }
  ForEachInParallel(0, 4, [](size_t) { FAIL() << "there is no index"; });
}

// Each call waits for the others: with fewer threads it would not end.
TEST(ForEachInParallel, Calls_RunAtTheSameTime) {
  absl::Mutex mutex;
  int begun = 0;
  const auto all = [&begun] { return begun == 4; };
  ForEachInParallel(4, 4, [&](size_t) {
    const absl::MutexLock lock(&mutex);
    ++begun;
    mutex.Await(absl::Condition(&all));
  });
}

TEST(ForEachInParallel, OneThread_IsTheCallers) {
  ForEachInParallel(
      3, 1, [caller = std::this_thread::get_id()](size_t) { EXPECT_EQ(std::this_thread::get_id(), caller); });
}

TEST(ForEachInParallel, MoreIndicesThanThreads_UseNoMoreThreads) {
  absl::Mutex mutex;
  std::set<std::thread::id> seen;
  ForEachInParallel(1000, 3, [&](size_t) {
    const absl::MutexLock lock(&mutex);
    seen.insert(std::this_thread::get_id());
  });
  EXPECT_LE(seen.size(), 3u);
}

}  // namespace
}  // namespace tensorcast::parallel_test
