#include "transport/serving_threads.h"

#include <atomic>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"

#include <gtest/gtest.h>

namespace tensorcast::transport {
namespace {

TEST(ServingThreads, ABlockedTaskHoldsUpOnlyItsOwnThread) {
  absl::Notification release, other_ran;  // outlive the threads that use them
  ServingThreads threads(2);
  threads.Submit([&] { release.WaitForNotification(); });
  threads.Submit([&] { other_ran.Notify(); });
  other_ran.WaitForNotification();
  release.Notify();
}

TEST(ServingThreads, WhatWasSubmittedRunsBeforeTheDestructorReturns) {
  std::atomic<int> ran = 0;
  {
    ServingThreads threads(1);
    for (int i = 0; i < 10; ++i) threads.Submit([&] { ++ran; });
  }
  EXPECT_EQ(ran, 10);
}

}  // namespace
}  // namespace tensorcast::transport
