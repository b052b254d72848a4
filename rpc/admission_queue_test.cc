#include "rpc/admission_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "rpc/retry_after.h"

namespace tensorcast::rpc::admission_queue_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Class = AdmissionQueue::Class;

// Threads that the test turns by hand.
class Turns final : public TaskRunner {
 public:
  absl::Status Schedule(Task task) override {
    if (full) return absl::UnavailableError("no thread");
    turns_.push_back(std::move(task));
    return absl::OkStatus();
  }
  void Run(size_t count = SIZE_MAX) {
    for (; count > 0 && !turns_.empty(); --count) {
      Task turn = std::move(turns_.front());
      turns_.pop_front();
      std::move(turn)();
    }
  }
  bool full = false;

 private:
  std::deque<Task> turns_;
};

class AdmissionQueueTest : public ::testing::Test {
 protected:
  absl::Status Submit(Class of, const std::string& name = "") {
    return queue_.line(of).Schedule([this, name] { ran_.push_back(name); });
  }

  SteadyTime now_ = SteadyTime() + absl::Hours(1);
  Turns turns_;
  AdmissionQueue queue_{&turns_, {.max_waiting = 20, .clock = [this] { return now_; }}};
  std::vector<std::string> ran_;
};

TEST_F(AdmissionQueueTest, Heartbeats_OvertakeRegistrations) {
  ASSERT_TRUE(Submit(Class::kInventory, "inventory").ok());
  ASSERT_TRUE(Submit(Class::kRegistration, "registration").ok());
  ASSERT_TRUE(Submit(Class::kCall, "call").ok());
  ASSERT_TRUE(Submit(Class::kHeartbeat, "heartbeat 1").ok());
  ASSERT_TRUE(Submit(Class::kHeartbeat, "heartbeat 2").ok());
  turns_.Run();
  EXPECT_THAT(ran_, ElementsAre("heartbeat 1", "heartbeat 2", "call", "registration", "inventory"));
}

TEST_F(AdmissionQueueTest, ManyHeartbeats_DoNotStarveOldestTask) {
  ASSERT_TRUE(Submit(Class::kInventory, "inventory").ok());
  now_ += absl::Milliseconds(1);
  for (int i = 0; i < AdmissionQueue::kTurnOfOthers && ran_.empty(); ++i) {
    ASSERT_TRUE(Submit(Class::kHeartbeat, "").ok());
    ASSERT_TRUE(Submit(Class::kHeartbeat, "").ok());
    turns_.Run(1);
    if (ran_.back() != "inventory") ran_.clear();
  }
  EXPECT_THAT(ran_, ElementsAre("inventory"));
}

TEST_F(AdmissionQueueTest, FullQueueOfClass_RefusesOnlyThatClass) {
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Submit(Class::kRegistration).ok());
  const absl::Status refused = Submit(Class::kRegistration);
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_TRUE(RetryAfterOf(refused).has_value());
  EXPECT_TRUE(Submit(Class::kHeartbeat).ok());
}

TEST_F(AdmissionQueueTest, LateQueueOfClass_RefusesUntilItsFirstTaskRan) {
  ASSERT_TRUE(Submit(Class::kRegistration).ok());
  now_ += absl::Seconds(2);
  EXPECT_TRUE(RetryAfterOf(Submit(Class::kRegistration)).has_value());
  turns_.Run();
  EXPECT_TRUE(Submit(Class::kRegistration).ok());
}

TEST_F(AdmissionQueueTest, RefusedCallers_GetIncreasingRetryDelays) {
  ASSERT_TRUE(Submit(Class::kRegistration).ok());
  now_ += absl::Seconds(2);
  absl::Duration previous = absl::ZeroDuration();
  for (int i = 0; i < 1000; ++i) {
    const std::optional<absl::Duration> delay = RetryAfterOf(Submit(Class::kRegistration));
    ASSERT_TRUE(delay.has_value());
    EXPECT_GT(*delay, previous);
    previous = *delay;
  }
  EXPECT_LE(previous, absl::Seconds(10));
}

TEST_F(AdmissionQueueTest, ManyRefusals_RetryDelayStaysBelowMax) {
  ASSERT_TRUE(Submit(Class::kRegistration).ok());
  now_ += absl::Seconds(2);
  for (int i = 0; i < 20'000; ++i) {
    EXPECT_LE(RetryAfterOf(Submit(Class::kRegistration)).value_or(absl::InfiniteDuration()),
              absl::Seconds(10));
  }
}

TEST_F(AdmissionQueueTest, FullExecutor_RefusesTaskAndKeepsQueuedOnes) {
  ASSERT_TRUE(Submit(Class::kCall, "first").ok());
  turns_.full = true;
  const absl::Status refused = Submit(Class::kHeartbeat, "refused");
  EXPECT_TRUE(RetryAfterOf(refused).has_value());
  EXPECT_THAT(refused.message(), HasSubstr("no thread"));
  turns_.full = false;
  turns_.Run();
  EXPECT_THAT(ran_, ElementsAre("first"));
}

TEST_F(AdmissionQueueTest, Lag_IsTheAgeOfTheOldestHeartbeat) {
  EXPECT_EQ(queue_.TakeLag(), absl::ZeroDuration());
  ASSERT_TRUE(Submit(Class::kHeartbeat).ok());
  now_ += absl::Seconds(1);
  EXPECT_EQ(queue_.TakeLag(), absl::Seconds(1));
  turns_.Run();
  EXPECT_EQ(queue_.TakeLag(), absl::ZeroDuration());
}

TEST_F(AdmissionQueueTest, WaitingInventory_CountsAsLag) {
  ASSERT_TRUE(Submit(Class::kInventory).ok());
  now_ += absl::Seconds(1);
  EXPECT_EQ(queue_.TakeLag(), absl::Seconds(1));
}

TEST_F(AdmissionQueueTest, RefusedHeartbeat_CountsAsLagOnce) {
  for (int i = 0; i < 21; ++i) Submit(Class::kHeartbeat).IgnoreError();
  turns_.Run();
  EXPECT_EQ(queue_.TakeLag(), absl::Seconds(2));
  EXPECT_EQ(queue_.TakeLag(), absl::ZeroDuration());
}

TEST(WaitAfter, WaitAfterRetryAfter_ObeysItWithJitter) {
  Backoff backoff;
  const absl::Status refused = RetryLater("behind", absl::Seconds(4));
  absl::Duration shortest = absl::InfiniteDuration();
  absl::Duration longest = absl::ZeroDuration();
  for (int i = 0; i < 100; ++i) {
    const absl::Duration wait = WaitAfter(refused, backoff);
    shortest = std::min(shortest, wait);
    longest = std::max(longest, wait);
  }
  EXPECT_GE(shortest, absl::Seconds(4));
  EXPECT_LE(longest, absl::Seconds(6));
  EXPECT_GT(longest, shortest);
}

TEST(WaitAfter, WaitAfterOtherError_IsTheBackoff) {
  Backoff backoff({.initial = absl::Milliseconds(10), .max = absl::Milliseconds(10)});
  EXPECT_LE(WaitAfter(absl::UnavailableError("away"), backoff), absl::Milliseconds(10));
}

TEST(RetryAfterOf, RetryAfterOutOfRange_IsClamped) {
  EXPECT_EQ(RetryAfterOf(RetryLater("", absl::Hours(1000))), kMaxRetryAfter);
  EXPECT_EQ(RetryAfterOf(RetryLater("", -absl::Seconds(5))), absl::ZeroDuration());
  absl::Status garbage = absl::UnavailableError("");
  garbage.SetPayload("type.googleapis.com/tensorcast.v1.RetryAfter", absl::Cord("\xff\xff"));
  EXPECT_EQ(RetryAfterOf(garbage), std::nullopt);
}

}  // namespace
}  // namespace tensorcast::rpc::admission_queue_test
