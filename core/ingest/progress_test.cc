#include "core/ingest/progress.h"

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace tensorcast::progress_test {
namespace {

constexpr absl::Duration kMoment = absl::Milliseconds(3);

WallTime TimeOf(const ProgressTracker& progress) {
  TransferReport report;
  progress.Report(&report);
  return report.wall_time;
}

TEST(ProgressTracker, TimeBetweenChunks_IsIdle) {
  ProgressTracker progress(8);
  EXPECT_EQ(TimeOf(progress)[TimeUse::kIdle], absl::ZeroDuration());
  progress.Took();
  progress.Ended();
  absl::SleepFor(kMoment);
  progress.Took();
  progress.Ended();
  EXPECT_GE(TimeOf(progress)[TimeUse::kIdle], kMoment);
}

// Of a source in this node's memory: nothing is requested, and the chunk is placed all the time.
TEST(ProgressTracker, ChunkThatIsPlacedWithoutRequest_IsNotIdle) {
  ProgressTracker progress(8);
  progress.Took();
  progress.Took();
  absl::SleepFor(kMoment);
  progress.Ended();
  absl::SleepFor(kMoment);
  progress.Ended();
  EXPECT_EQ(TimeOf(progress)[TimeUse::kIdle], absl::ZeroDuration());
}

TEST(ProgressTracker, WaitForBuffer_CountsWhileNothingIsRequested) {
  ProgressTracker progress(8);
  StageClock clock({SourceType::kRemote, "tcp", "node-0"});
  progress.Asked(clock);
  progress.BeginBufferWait();
  absl::SleepFor(kMoment);
  EXPECT_EQ(TimeOf(progress)[TimeUse::kBuffers], absl::ZeroDuration());
  progress.Answered(clock);
  absl::SleepFor(kMoment);
  progress.EndBufferWait();
  const absl::Duration waited = TimeOf(progress)[TimeUse::kBuffers];
  EXPECT_GE(waited, kMoment);
  absl::SleepFor(kMoment);
  EXPECT_EQ(TimeOf(progress)[TimeUse::kBuffers], waited);
}

}  // namespace
}  // namespace tensorcast::progress_test
