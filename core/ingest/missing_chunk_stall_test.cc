#include "core/ingest/missing_chunk_stall.h"

#include <utility>

#include "gtest/gtest.h"

namespace tensorcast::missing_chunk_stall_test {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(10);

SteadyTime At(double seconds) { return SteadyTime() + absl::Seconds(1000 + seconds); }

TEST(MissingChunkStall, MissingChunkStall_EndsAfterLimitWithoutChunks) {
  MissingChunkStall watch(kLimit);
  EXPECT_FALSE(watch.idle());
  watch.NoteNothing(At(1));
  watch.NoteNothing(At(5));
  EXPECT_EQ(watch.since(), At(1));
  EXPECT_EQ(watch.ends(), At(11));
}

TEST(MissingChunkStall, MissingChunkStall_RestartsWithEachChunk) {
  MissingChunkStall watch(kLimit);
  watch.NoteNothing(At(1));
  watch.NoteChunk();
  EXPECT_FALSE(watch.idle());
  EXPECT_EQ(watch.ends(), SteadyTime::InfiniteFuture());
  watch.NoteNothing(At(8));
  EXPECT_EQ(watch.ends(), At(18));
}

TEST(MissingChunkStall, MissingChunkStall_ContinuesWhenNewSourceHasNothing) {
  MissingChunkStall watch(kLimit);
  watch.NoteNothing(At(0));
  watch.NoteSources(At(4));
  EXPECT_FALSE(watch.idle());
  watch.NoteNothing(At(4));
  EXPECT_EQ(watch.since(), At(4));
  EXPECT_EQ(watch.ends(), At(10));
  watch.NoteSources(At(10));
  watch.NoteChunk();
  watch.NoteNothing(At(20));
  EXPECT_EQ(watch.ends(), At(30)) << "it had something";
}

// As when receivers that wait for the same chunk are offered to each other in turn.
TEST(MissingChunkStall, MissingChunkStall_GivesLateSourcesShorterLimits) {
  MissingChunkStall watch(kLimit);
  watch.NoteNothing(At(0));
  for (const auto& [comes, ends] : {std::pair(10, 12.5), {12, 14.5}, {14, 15}, {15, 15.5}, {16, 16.5}}) {
    watch.NoteSources(At(comes));
    watch.NoteNothing(At(comes));
    EXPECT_EQ(watch.ends(), At(ends));
  }
}

TEST(MissingChunkStall, MissingChunkStall_ExcludesTimeOfSourceLookups) {
  MissingChunkStall watch(kLimit);
  watch.NoteNothing(At(0));
  watch.NoteSources(At(1));
  watch.NoteSources(At(60));
  watch.NoteNothing(At(60));
  EXPECT_EQ(watch.ends(), At(69));
}

TEST(MissingChunkStall, MissingChunkStall_KeepsShortLimit) {
  MissingChunkStall watch(absl::Milliseconds(20));
  watch.NoteNothing(At(0));
  watch.NoteSources(At(1));
  watch.NoteNothing(At(1));
  EXPECT_EQ(watch.ends(), At(1.005));
}

TEST(MissingChunkStall, MissingChunkStall_NeverEndsWithoutLimit) {
  MissingChunkStall watch(absl::InfiniteDuration());
  watch.NoteNothing(At(0));
  EXPECT_EQ(watch.ends(), SteadyTime::InfiniteFuture());
}

}  // namespace
}  // namespace tensorcast::missing_chunk_stall_test
