#include "base/rate_limit.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace tensorcast::rate_limit_test {
namespace {

constexpr uint64_t kRate = 1000000;

class RateLimitTest : public ::testing::Test {
 protected:
  // Moves as soon as it may, in steps of so many bytes, for so long; how many bytes moved.
  uint64_t MoveFor(absl::Duration time, uint64_t step) {
    const SteadyTime end = now_ + time;
    uint64_t moved = 0;
    for (;;) {
      now_ = std::max(now_, limit_.ReadyAt(now_));
      if (now_ >= end) break;
      limit_.Spend(step, now_);
      moved += step;
    }
    now_ = end;
    return moved;
  }

  SteadyTime now_ = SteadyTime() + absl::Hours(1);
  RateLimit limit_{kRate};
};

TEST_F(RateLimitTest, RateLimit_HoldsItsRateForAnyStepSize) {
  for (const uint64_t step : {uint64_t{100}, uint64_t{7777}, uint64_t{30000}}) {
    const uint64_t moved = MoveFor(absl::Seconds(10), step);
    EXPECT_LE(moved, 10 * kRate + kRate / 20 + step);
    EXPECT_GE(moved, 10 * kRate - step);
  }
}

TEST_F(RateLimitTest, LargeStep_DelaysTheNextOne) {
  EXPECT_LE(limit_.ReadyAt(now_), now_);
  limit_.Spend(5 * kRate, now_);
  EXPECT_EQ(limit_.ReadyAt(now_), now_ + absl::Seconds(5) - RateLimit::kBurst);
  now_ += absl::Seconds(5);
  EXPECT_LE(limit_.ReadyAt(now_), now_);
}

TEST_F(RateLimitTest, PausedRateLimit_SavesOnlyItsBurst) {
  limit_.Spend(kRate, now_);
  now_ += absl::Hours(1);
  EXPECT_LE(MoveFor(absl::Seconds(1), 1000), kRate + kRate / 20 + 1000);
}

TEST_F(RateLimitTest, ZeroRateLimit_NeverDelays) {
  RateLimit none(0);
  none.Spend(uint64_t{1} << 60, now_);
  EXPECT_LE(none.ReadyAt(now_), now_);
}

}  // namespace
}  // namespace tensorcast::rate_limit_test
