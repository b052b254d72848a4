#include "base/steady_time.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "base/request_context.h"
#include "base/testing/wall_clock.h"

namespace tensorcast {
namespace {

using testing::WallClockSet;

TEST(SteadyTime, ReadsLikeTheWallClockAndOnlyGrows) {
  const absl::Time wall = absl::Now();
  absl::Time last = SteadyNow();
  EXPECT_LT(absl::AbsDuration(last - wall), absl::Seconds(10));
  for (int i = 0; i < 1000; ++i) {
    const absl::Time now = SteadyNow();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(SteadyTime, IsNotMovedWhenTheWallClockIsSet) {
  const absl::Time before = SteadyNow();
  for (const absl::Duration set_by : {absl::Hours(6), -absl::Hours(6)}) {
    const absl::Time unset = absl::Now();
    const WallClockSet wall_clock(set_by);
    EXPECT_LT(absl::AbsDuration(absl::Now() - unset - set_by), absl::Minutes(5)) << "the clock was not set";
    const absl::Duration passed = SteadyNow() - before;
    EXPECT_GE(passed, absl::ZeroDuration());
    EXPECT_LT(passed, absl::Minutes(5));
  }
}

TEST(SteadyTime, IsTranslatedForOthers) {
  const absl::Time steady = SteadyNow();
  EXPECT_EQ(ToWallTime(steady), steady) << "no step, no rounding";
  const WallClockSet wall_clock(absl::Hours(6));
  EXPECT_LT(absl::AbsDuration(ToWallTime(steady) - steady - absl::Hours(6)), absl::Seconds(1));
  EXPECT_EQ(ToWallTime(absl::InfiniteFuture()), absl::InfiniteFuture());
  EXPECT_EQ(ToWallTime(absl::InfinitePast()), absl::InfinitePast());
}

TEST(SteadyTime, ADeadlineNeitherComesEarlierNorLaterWhenTheWallClockIsSet) {
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
