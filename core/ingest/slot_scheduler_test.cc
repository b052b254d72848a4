#include "core/ingest/slot_scheduler.h"

#include <memory>

#include "gtest/gtest.h"

namespace tensorcast::slot_scheduler_test {
namespace {

class SlotSchedulerTest : public ::testing::Test {
 protected:
  static FetchPtr Chunk() { return std::make_shared<ChunkFetch>(); }
  bool SlotWakes() const { return slots_.MayWake(/*control=*/false, /*slot=*/true); }
  bool ControlWakes() const { return slots_.MayWake(/*control=*/true, /*slot=*/false); }
  void SleepAll() { slots_.Sleep(/*control=*/true, /*slot=*/true); }

  SlotScheduler slots_{/*buffers=*/true};
};

TEST_F(SlotSchedulerTest, ArrivedChunks_ComeInTheirOrderAndWakeOneSlotEach) {
  const FetchPtr first = Chunk();
  const FetchPtr second = Chunk();
  slots_.AddArrived(first);
  slots_.AddArrived(second);
  EXPECT_TRUE(SlotWakes());
  EXPECT_FALSE(ControlWakes());
  EXPECT_EQ(slots_.TakeArrived(), first);
  EXPECT_TRUE(SlotWakes()) << "for the second";
  EXPECT_EQ(slots_.TakeArrived(), second);
  EXPECT_FALSE(SlotWakes()) << "the slot that took it returns by itself";
  EXPECT_EQ(slots_.TakeArrived(), nullptr);
}

TEST_F(SlotSchedulerTest, PlacingChunks_AreAwaitedByOneSlotAtATime) {
  const FetchPtr first = Chunk();
  const FetchPtr second = Chunk();
  slots_.AddPlacing(first);
  slots_.AddPlacing(second);
  EXPECT_EQ(slots_.TakeToAwait(), first);
  EXPECT_FALSE(SlotWakes());
  EXPECT_EQ(slots_.TakeToAwait(), nullptr) << "a slot awaits the first";
  slots_.EndAwait();
  EXPECT_EQ(slots_.TakeToAwait(), second);
}

TEST_F(SlotSchedulerTest, SlotThatWaitsForBuffer_KeepsOthersFromTaking) {
  ASSERT_TRUE(slots_.MayTake(/*slots=*/2, /*under_way=*/5));
  slots_.Took(true);
  EXPECT_FALSE(slots_.MayTake(2, 6));
  EXPECT_FALSE(slots_.all_with_sources());
  SleepAll();
  slots_.EndAcquire();
  EXPECT_TRUE(SlotWakes());
  EXPECT_TRUE(slots_.MayTake(2, 6));
  EXPECT_TRUE(slots_.all_with_sources());
}

TEST_F(SlotSchedulerTest, OnlySlot_TakesNoSecondChunkThatNeedsBuffer) {
  EXPECT_TRUE(slots_.MayTake(/*slots=*/1, /*under_way=*/0));
  EXPECT_FALSE(slots_.MayTake(/*slots=*/1, /*under_way=*/1)) << "it has to give the first buffer back";
}

TEST_F(SlotSchedulerTest, ChunksWithoutBuffers_AreTakenByAllSlots) {
  SlotScheduler slots(/*buffers=*/false);
  slots.Took(true);
  EXPECT_TRUE(slots.MayTake(/*slots=*/1, /*under_way=*/1));
  EXPECT_TRUE(slots.all_with_sources());
}

TEST_F(SlotSchedulerTest, MoreToTake_WakesNextSlotUntilOneFindsNothing) {
  slots_.NoteMore();
  slots_.Took(true);
  EXPECT_TRUE(SlotWakes()) << "there may be another chunk";
  slots_.Took(false);
  SleepAll();
  slots_.AddArrived(Chunk());
  EXPECT_NE(slots_.TakeArrived(), nullptr);
  EXPECT_FALSE(SlotWakes());
}

TEST_F(SlotSchedulerTest, Change_WakesControlAndSlots) {
  SleepAll();
  EXPECT_FALSE(SlotWakes());
  EXPECT_FALSE(ControlWakes());
  slots_.NoteChange();
  EXPECT_TRUE(SlotWakes());
  EXPECT_TRUE(ControlWakes());
  slots_.Sleep(/*control=*/true, /*slot=*/false);
  EXPECT_FALSE(ControlWakes());
  EXPECT_TRUE(SlotWakes()) << "a thread in control alone leaves it to the slots";
}

TEST_F(SlotSchedulerTest, ArrivedAndPlacingChunks_AreNotWithSources) {
  EXPECT_TRUE(slots_.all_with_sources());
  slots_.AddArrived(Chunk());
  EXPECT_FALSE(slots_.all_with_sources());
  (void)slots_.TakeArrived();
  slots_.AddPlacing(Chunk());
  EXPECT_FALSE(slots_.all_with_sources());
}

}  // namespace
}  // namespace tensorcast::slot_scheduler_test
