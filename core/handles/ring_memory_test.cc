#include "core/handles/ring_memory.h"

#include <gtest/gtest.h>

#include <thread>

namespace tensorcast::ring_memory_test {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(RingShape, RingShapeFor_IsNotLargerThanTheImage) {
  EXPECT_EQ(RingShape::For(0).slots, 1u);
  EXPECT_EQ(RingShape::For(1).slots, 1u);
  const RingShape largest = RingShape::For(~uint64_t{0} / 2);
  EXPECT_EQ(RingShape::For(largest.slot_bytes).slots, 1u);
  EXPECT_EQ(RingShape::For(largest.slot_bytes + 1).slots, 2u);
  EXPECT_EQ(RingShape::For(uint64_t{largest.slots} * largest.slot_bytes), largest);
  EXPECT_EQ(largest.bytes(), 8 * kMiB + kRingHeaderBytes);
  for (const uint64_t bytes : {uint64_t{0}, kMiB, 100 * kMiB}) {
    EXPECT_TRUE(RingShape::For(bytes).Check().ok());
  }
}

TEST(RingShape, RingShapeCheck_RefusesInvalidSlots) {
  const RingShape wrong[] = {{0, 4096}, {kMaxRingSlots + 1, 4096}, {1, 0}, {1, 4095}, {1, (16 << 20) + 4096}};
  for (const RingShape& shape : wrong) {
    EXPECT_TRUE(absl::IsInvalidArgument(shape.Check())) << shape.slots << " of " << shape.slot_bytes;
  }
  EXPECT_TRUE((RingShape{kMaxRingSlots, 16 << 20}.Check().ok()));
}

TEST(RingWords, SleepWhile_ReturnsWhenWordChangesOrTimeIsOver) {
  std::atomic<uint32_t> word = 0;
  std::thread sleeper([&] {
    while (word.load() == 0) SleepWhile(word, 0, absl::InfiniteDuration());
  });
  word.store(1);
  WakeSleepers(word, 1);
  sleeper.join();
  SleepWhile(word, 0, absl::InfiniteDuration());  // another value by now: no sleep at all
  SleepWhile(word, 1, absl::Milliseconds(1));     // nothing wakes it but its limit
  SleepWhile(word, 1, absl::Seconds(-1));
}

}  // namespace
}  // namespace tensorcast::ring_memory_test
