#include "rpc/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>

#include "absl/synchronization/barrier.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "base/testing/eventually.h"
#include "base/testing/no_threads.h"

namespace tensorcast::rpc::executor_test {
namespace {

TEST(Executor, BlockedTasks_EachGetThread) {
  Executor executor({.max_threads = 8});
  auto* barrier = new absl::Barrier(8);  // passes only when eight tasks run at a time
  absl::BlockingCounter done(8);
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(executor
                    .Schedule([barrier, &done] {
                      if (barrier->Block()) delete barrier;
                      done.DecrementCount();
                    })
                    .ok());
  }
  done.Wait();
  EXPECT_EQ(executor.threads(), 8);
}

TEST(Executor, ManyTasks_AllRunWithinMaxThreads) {
  std::atomic<int> running{0};
  std::atomic<int> max_seen{0};
  std::atomic<int> ran{0};
  {
    Executor executor({.max_threads = 3});
    for (int i = 0; i < 200; ++i) {
      ASSERT_TRUE(executor
                      .Schedule([&] {
                        int now = ++running;
                        int seen = max_seen;
                        while (now > seen && !max_seen.compare_exchange_weak(seen, now)) {
                        }
                        ++ran;
                        --running;
                      })
                      .ok());
    }
  }
  EXPECT_EQ(ran, 200);
  EXPECT_LE(max_seen, 3);
}

TEST(Executor, FullQueue_RefusesTaskWithUnavailable) {
  absl::Notification release;
  absl::Notification started;
  Executor executor({.max_threads = 1, .max_queued = 2});
  ASSERT_TRUE(executor
                  .Schedule([&] {
                    started.Notify();
                    release.WaitForNotification();
                  })
                  .ok());
  started.WaitForNotification();
  ASSERT_TRUE(executor.Schedule([] {}).ok());
  ASSERT_TRUE(executor.Schedule([] {}).ok());
  absl::Status refused = executor.Schedule([] { FAIL() << "a refused task was run"; });
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(refused.message(), ::testing::HasSubstr("2 requests wait for one of 1 threads"));
  release.Notify();
}

TEST(Executor, RefusedTask_IsDestroyedWithoutTheLock) {
  Executor executor;
  absl::Status refused;
  int threads_at_end = -1;
  const bool tried = tensorcast::testing::WithoutThreads([&] {
    std::shared_ptr<void> calls_back(nullptr, [&](void*) { threads_at_end = executor.threads(); });
    refused = executor.Schedule([captured = std::move(calls_back)] {});
  });
  if (!tried) GTEST_SKIP() << "the kernel does not let this test refuse threads";
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_EQ(threads_at_end, 0);
}

TEST(Executor, IdleThreads_EndAndAreStartedAgain) {
  Executor executor({.max_threads = 2, .idle_timeout = absl::Milliseconds(1)});
  for (int round = 0; round < 3; ++round) {
    absl::Notification ran;
    ASSERT_TRUE(executor.Schedule([&] { ran.Notify(); }).ok());
    ran.WaitForNotification();
    EXPECT_TRUE(tensorcast::testing::Eventually([&] { return executor.threads() == 0; }));
  }
}

TEST(Executor, DestroyedExecutor_RunsQueuedTasks) {
  std::atomic<int> ran{0};
  {
    Executor executor({.max_threads = 1});
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(executor.Schedule([&] { ++ran; }).ok());
  }
  EXPECT_EQ(ran, 50);
}

TEST(Executor, FinishedTask_ReleasesItsCaptures) {
  Executor executor;
  auto token = std::make_shared<int>(1);
  std::weak_ptr<int> watch = token;
  absl::Notification ran;
  ASSERT_TRUE(executor.Schedule([token = std::move(token), &ran] { ran.Notify(); }).ok());
  ran.WaitForNotification();
  EXPECT_TRUE(tensorcast::testing::Eventually([&] { return watch.expired(); }));
}

}  // namespace
}  // namespace tensorcast::rpc::executor_test
