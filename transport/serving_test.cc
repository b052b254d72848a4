#include "transport/serving.h"

#include <atomic>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

#include <gtest/gtest.h>

namespace tensorcast::transport::serving_test {
namespace {

TEST(ServeCounter, ServeCounter_SumsRequestsAndBytesWithTimes) {
  ServeCounter counter;
  EXPECT_EQ(counter.stats().requests, 0u);
  counter.AddRequest(4);
  const SteadyTime first = counter.stats().first_request;
  counter.AddBytes(3, 3);
  counter.AddRequest(4);
  counter.AddBytes(4, 4);
  const ServeStats stats = counter.stats();
  EXPECT_EQ(stats.requests, 2u);
  EXPECT_EQ(stats.bytes, 7u);
  EXPECT_EQ(stats.first_request, first);
  EXPECT_GE(stats.last_completion, first);
}

TEST(ServeCounter, AskedTime_EndsWithLastRequestedByte) {
  ServeCounter counter;
  EXPECT_EQ(counter.stats().asked, absl::ZeroDuration());
  counter.AddRequest(8);
  absl::SleepFor(absl::Milliseconds(2));
  counter.AddBytes(5, 5);
  const absl::Duration half = counter.stats().asked;
  EXPECT_GE(half, absl::Milliseconds(2));
  absl::SleepFor(absl::Milliseconds(2));
  counter.DropRequested(3);
  const absl::Duration all = counter.stats().asked;
  EXPECT_GE(all, absl::Milliseconds(4));
  absl::SleepFor(absl::Milliseconds(2));
  EXPECT_EQ(counter.stats().asked, all);
}

TEST(ServeCounter, BytesWithoutRequests_AreNotAsked) {
  ServeCounter counter;
  counter.AddBytes(5, 0);
  EXPECT_EQ(counter.stats().asked, absl::ZeroDuration());
}

TEST(ServingThreads, BlockedTask_OccupiesOnlyOneServingThread) {
  absl::Notification release, other_ran;  // outlive the threads that use them
  ServingThreads threads(2);
  threads.Submit([&] { release.WaitForNotification(); });
  threads.Submit([&] { other_ran.Notify(); });
  other_ran.WaitForNotification();
  release.Notify();
}

TEST(ServingThreads, ServingThreadsDestructor_RunsSubmittedTasks) {
  std::atomic<int> ran = 0;
  {
    ServingThreads threads(1);
    for (int i = 0; i < 10; ++i) threads.Submit([&] { ++ran; });
  }
  EXPECT_EQ(ran, 10);
}

}  // namespace
}  // namespace tensorcast::transport::serving_test
