#include "base/steady_time.h"

#include <gtest/gtest.h>

#include <concepts>

#include "absl/time/clock.h"
#include "base/request_context.h"
#include "base/testing/wall_clock.h"

namespace tensorcast {
namespace {

using testing::WallClockSet;

static_assert(!std::convertible_to<SteadyTime, absl::Time> && !std::convertible_to<absl::Time, SteadyTime>);
static_assert(!std::equality_comparable_with<SteadyTime, absl::Time>);

TEST(SteadyTime, SteadyNow_IsNearWallClockAndMonotonic) {
  const absl::Time wall = absl::Now();
  SteadyTime last = SteadyNow();
  EXPECT_LT(absl::AbsDuration(ToWallTime(last) - wall), absl::Seconds(10));
  for (int i = 0; i < 1000; ++i) {
    const SteadyTime now = SteadyNow();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(SteadyTime, WallClockSet_SteadyTimeIsNotMoved) {
  const SteadyTime before = SteadyNow();
  for (const absl::Duration set_by : {absl::Hours(6), -absl::Hours(6)}) {
    const absl::Time unset = absl::Now();
    const WallClockSet wall_clock(set_by);
    EXPECT_LT(absl::AbsDuration(absl::Now() - unset - set_by), absl::Minutes(5)) << "the clock was not set";
    const absl::Duration passed = SteadyNow() - before;
    EXPECT_GE(passed, absl::ZeroDuration());
    EXPECT_LT(passed, absl::Minutes(5));
  }
}

TEST(SteadyTime, WallTimeConversion_RoundTrips) {
  const SteadyTime steady = SteadyNow();
  const absl::Time unset = ToWallTime(steady);
  EXPECT_EQ(ToWallTime(steady), unset) << "no step, no rounding";
  EXPECT_EQ(FromWallTime(unset), steady);
  const WallClockSet wall_clock(absl::Hours(6));
  EXPECT_LT(absl::AbsDuration(ToWallTime(steady) - unset - absl::Hours(6)), absl::Seconds(1));
  EXPECT_LT(absl::AbsDuration(FromWallTime(ToWallTime(steady)) - steady), absl::Seconds(1));
}

TEST(SteadyTime, InfiniteTimes_ConvertToInfiniteWallTimes) {
  EXPECT_EQ(ToWallTime(SteadyTime::InfiniteFuture()), absl::InfiniteFuture());
  EXPECT_EQ(ToWallTime(SteadyTime::InfinitePast()), absl::InfinitePast());
  EXPECT_EQ(FromWallTime(absl::InfiniteFuture()), SteadyTime::InfiniteFuture());
  EXPECT_EQ(FromWallTime(absl::InfinitePast()), SteadyTime::InfinitePast());
}

TEST(SteadyTime, SteadyTime_IsOrderedAndMovedByDurations) {
  const SteadyTime now = SteadyNow();
  EXPECT_LT(SteadyTime::InfinitePast(), SteadyTime());
  EXPECT_LT(SteadyTime(), now);
  EXPECT_LT(now, SteadyTime::InfiniteFuture());
  EXPECT_EQ(now + absl::Seconds(1) - now, absl::Seconds(1));
  EXPECT_EQ(now + absl::Seconds(1) - absl::Seconds(1), now);
  EXPECT_EQ(now + absl::InfiniteDuration(), SteadyTime::InfiniteFuture());
  EXPECT_EQ(TimeLeft(SteadyTime::InfiniteFuture()), absl::InfiniteDuration());
}

TEST(SteadyTime, WallClockSet_DeadlinesAreNotMoved) {
  const RequestContext long_one = RequestContext::Background(absl::Minutes(5));
  const RequestContext over = RequestContext::Background(-absl::Milliseconds(1));
  for (const absl::Duration set_by : {absl::Hours(6), -absl::Hours(6)}) {
    const WallClockSet wall_clock(set_by);
    EXPECT_EQ(long_one.Check("waiting"), absl::OkStatus());
    EXPECT_TRUE(absl::IsDeadlineExceeded(over.Check("waiting")));
    EXPECT_GT(TimeLeft(long_one.deadline), absl::ZeroDuration());
    EXPECT_LT(TimeLeft(over.deadline), absl::ZeroDuration());
  }
}

}  // namespace
}  // namespace tensorcast
