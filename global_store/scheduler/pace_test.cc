#include "global_store/scheduler/pace.h"

#include <gtest/gtest.h>

namespace tensorcast::global_store::pace_test {
namespace {

TEST(LookSchedule, Pauses_GrowAndEnd) {
  LookSchedule schedule;
  EXPECT_EQ(schedule.Next(), LookSchedule::kFirstPause);
  absl::Duration last = LookSchedule::kFirstPause;
  for (uint32_t look = 1; look < LookSchedule::kMaxLooks; ++look) {
    const absl::Duration pause = schedule.Next();
    EXPECT_NEAR(absl::FDivDuration(pause, last), LookSchedule::kFactor, 1e-6);
    last = pause;
  }
  EXPECT_EQ(schedule.Next(), absl::InfiniteDuration());
  EXPECT_EQ(schedule.looks(), LookSchedule::kMaxLooks);
}

TEST(HostmatePatience, Pauses_GrowAndEndWithTheTurn) {
  const SteadyTime begin = SteadyTime() + absl::Seconds(1);
  HostmatePatience patience;
  EXPECT_EQ(patience.Wait(begin), HostmatePatience::kShortestPause);
  EXPECT_EQ(patience.Wait(begin + absl::Milliseconds(100)), absl::Milliseconds(100));
  EXPECT_EQ(patience.Wait(begin + absl::Milliseconds(400)), absl::Milliseconds(100)) << "what is left";
  EXPECT_EQ(patience.Wait(begin + HostmatePatience::kTurn), std::nullopt);
  EXPECT_EQ(patience.Wait(begin + absl::Seconds(5)), std::nullopt) << "it has no second turn to wait for";
  patience.End();
  EXPECT_EQ(patience.Wait(begin + absl::Seconds(5)), HostmatePatience::kShortestPause);
}

}  // namespace
}  // namespace tensorcast::global_store::pace_test
