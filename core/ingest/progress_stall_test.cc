#include "core/ingest/progress_stall.h"

#include "gtest/gtest.h"

namespace tensorcast::progress_stall_test {
namespace {

const SteadyTime kStart = SteadyTime() + absl::Hours(1);
SteadyTime At(int milliseconds) { return kStart + absl::Milliseconds(milliseconds); }

TEST(ProgressStall, ProgressStall_IsReportedOnceAfterHalfASecond) {
  ProgressStall watch;
  watch.Note(0, At(0));
  EXPECT_FALSE(watch.TakeStall(At(499)));
  EXPECT_TRUE(watch.TakeStall(At(500)));
  EXPECT_FALSE(watch.TakeStall(At(501)));
}

TEST(ProgressStall, ProgressStall_RestartsWithEachChunk) {
  ProgressStall watch;
  watch.Note(0, At(0));
  watch.Note(20, At(400));
  EXPECT_FALSE(watch.TakeStall(At(899)));
  EXPECT_TRUE(watch.TakeStall(At(900)));
}

TEST(ProgressStall, ProgressStall_DoublesItsLimitAfterEachReport) {
  ProgressStall watch;
  watch.Note(0, At(0));
  EXPECT_TRUE(watch.TakeStall(At(500)));
  EXPECT_FALSE(watch.TakeStall(At(1'499)));
  EXPECT_TRUE(watch.TakeStall(At(1'500)));
  EXPECT_FALSE(watch.TakeStall(At(3'499)));
}

TEST(ProgressStall, SourceWithSlowChunks_IsGivenTime) {
  ProgressStall watch;
  watch.Note(3, At(0));
  watch.Note(5, At(1'000));
  EXPECT_FALSE(watch.TakeStall(At(2'999))) << "four times half a second";
  EXPECT_TRUE(watch.TakeStall(At(3'000)));
}

TEST(ProgressStall, ProgressStall_RestartsWhenSourceLeaves) {
  ProgressStall watch;
  watch.Note(30, At(0));
  watch.Note(10, At(400));
  EXPECT_FALSE(watch.TakeStall(At(899)));
  EXPECT_TRUE(watch.TakeStall(At(900)));
}

TEST(ProgressStall, ProgressStall_SetsNoTimerWhenNothingIsWatched) {
  ProgressStall watch;
  EXPECT_EQ(watch.LookIn(), absl::InfiniteDuration());
  EXPECT_FALSE(watch.TakeStall(At(0)));
  watch.Note(0, At(0));
  EXPECT_EQ(watch.LookIn(), absl::Milliseconds(250));
  watch.Reset();
  EXPECT_EQ(watch.LookIn(), absl::InfiniteDuration());
}

}  // namespace
}  // namespace tensorcast::progress_stall_test
