#include "transport/silent_pull_stall.h"

#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast::transport::silent_pull_stall_test {
namespace {

class SilentPullStallTest : public ::testing::Test {
 protected:
  ~SilentPullStallTest() override { watch_.Stop(); }

  // The owner thread runs its next timers as they are due.
  void RunSlices(int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_TRUE(queue_.has_timers()) << "nothing is watched";
      EXPECT_TRUE(queue_.RunTimers(queue_.next_timer()));
    }
  }

  TaskQueue queue_{[] {}};
  int silences_ = 0;
  SilentPullStall watch_{&queue_, [this] { ++silences_; }};
};

TEST_F(SilentPullStallTest, SilentPullStall_IsReportedOnceAfterLimit) {
  watch_.set_limit(absl::Hours(1));
  const SteadyTime start = SteadyNow();
  watch_.Start();
  EXPECT_GE(queue_.next_timer(), start + absl::Hours(1) / SilentPullStall::kSlices);
  RunSlices(SilentPullStall::kSlices - 1);
  EXPECT_EQ(silences_, 0);
  RunSlices(1);
  EXPECT_EQ(silences_, 1);
  EXPECT_FALSE(queue_.has_timers());
}

TEST_F(SilentPullStallTest, SilentPullStall_RestartsWithEachByte) {
  watch_.set_limit(absl::Hours(1));
  watch_.Start();
  for (int i = 0; i < 3; ++i) {
    RunSlices(SilentPullStall::kSlices - 1);
    watch_.BytesArrived();
    RunSlices(1);
  }
  RunSlices(SilentPullStall::kSlices - 1);
  EXPECT_EQ(silences_, 0);
  RunSlices(1);
  EXPECT_EQ(silences_, 1);
}

// The limit is over many times when the thread comes back; what arrived meanwhile is read after its timers
// ran.
TEST_F(SilentPullStallTest, SuspendedThread_CountsAsOneSlice) {
  watch_.set_limit(absl::Milliseconds(1));
  watch_.Start();
  const SteadyTime back = queue_.next_timer() + absl::Milliseconds(20);
  watch_.set_limit(absl::Hours(1));
  EXPECT_TRUE(queue_.RunTimers(back));
  EXPECT_EQ(silences_, 0);
  RunSlices(SilentPullStall::kSlices - 2);
  watch_.BytesArrived();
  RunSlices(SilentPullStall::kSlices);
  EXPECT_EQ(silences_, 0);
  RunSlices(1);
  EXPECT_EQ(silences_, 1);
}

TEST_F(SilentPullStallTest, SilentPullStall_NeedsRequestAndLimit) {
  watch_.Start();
  EXPECT_FALSE(queue_.has_timers());
  watch_.set_limit(absl::Hours(1));
  watch_.Start();
  RunSlices(SilentPullStall::kSlices - 1);
  watch_.Stop();
  EXPECT_FALSE(queue_.has_timers());
  watch_.Start();
  RunSlices(SilentPullStall::kSlices - 1);
  watch_.Start();  // more is asked for: the same silence goes on
  EXPECT_EQ(silences_, 0);
  RunSlices(1);
  EXPECT_EQ(silences_, 1);
}

}  // namespace
}  // namespace tensorcast::transport::silent_pull_stall_test
