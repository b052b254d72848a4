#include "core/replica/availability.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tensorcast::availability_test {
namespace {

TEST(AvailabilityTest, AvailabilityChunks_RoundUpImageSize) {
  EXPECT_EQ(Availability(1, 4096).chunks(), 1u);
  EXPECT_EQ(Availability(4096, 4096).chunks(), 1u);
  EXPECT_EQ(Availability(4097, 4096).chunks(), 2u);
}

TEST(AvailabilityTest, AddedChunk_IsTheOnlyOnePresent) {
  Availability have(1000, 10);
  have.Add(70);
  have.Add(70);
  EXPECT_TRUE(have.Has(70));
  EXPECT_FALSE(have.Has(69));
  EXPECT_FALSE(have.Has(100)) << "past the image";
  EXPECT_EQ(have.count(), 1u);
  EXPECT_EQ(have.Words(), (std::vector<uint64_t>{0, uint64_t{1} << 6}));
}

TEST(AvailabilityTest, HasRange_IsTrueWhenAllItsChunksArePresent) {
  Availability have(95, 10);
  have.Add(3);
  have.Add(4);
  have.Add(9);
  EXPECT_TRUE(have.HasRange(30, 20));
  EXPECT_TRUE(have.HasRange(35, 1));
  EXPECT_FALSE(have.HasRange(30, 21));
  EXPECT_FALSE(have.HasRange(29, 2));
  EXPECT_TRUE(have.HasRange(90, 5));
  EXPECT_FALSE(have.HasRange(90, 6)) << "the image has 95 bytes";
  EXPECT_FALSE(have.HasRange(30, 0));
  EXPECT_FALSE(have.HasRange(40, ~uint64_t{0})) << "no sum overflows";
}

TEST(AvailabilityTest, AddWords_AcceptsAnyOffsetAndIgnoresExcessBits) {
  Availability have(100, 1);
  have.AddWords(10, {0b101});
  have.AddWords(99, {~uint64_t{0}});
  have.AddWords(100, {1});
  EXPECT_TRUE(have.Has(10) && have.Has(12) && have.Has(99));
  EXPECT_EQ(have.Word(0), 0b101u << 10);
  EXPECT_EQ(have.Words(), (std::vector<uint64_t>{have.Word(0), have.Word(1)}));
  EXPECT_EQ(have.count(), 3u);
}

TEST(AvailabilityTest, AvailabilityWatch_IsCalledForEachChangeUntilDestroyed) {
  Availability have(10, 1);
  int told = 0;
  {
    const Availability::Watch watch = have.OnChange([&told] { ++told; });
    have.Add(1);
    have.Add(1);
    have.AddWords(0, {0b1110});
    EXPECT_EQ(told, 2);
    have.End(absl::OkStatus());
    EXPECT_EQ(told, 3);
  }
  Availability other(10, 1);
  {
    const Availability::Watch watch = other.OnChange([&told] { ++told; });
  }
  other.Add(1);
  EXPECT_EQ(told, 3);
}

TEST(AvailabilityTest, EndedAvailability_KeepsFirstEndAndIgnoresAdds) {
  Availability have(10, 1);
  EXPECT_FALSE(have.ended());
  have.End(absl::CancelledError("no caller waits for it"));
  have.End(absl::OkStatus());
  have.Add(3);
  have.AddWords(0, {1});
  EXPECT_TRUE(have.ended());
  EXPECT_TRUE(absl::IsCancelled(have.end()));
  EXPECT_EQ(have.count(), 0u);
}

TEST(AvailabilityTest, ConcurrentAdds_AreEachCountedAndReported) {
  Availability have(10000, 1);
  std::atomic<int> told = 0;
  const Availability::Watch watch = have.OnChange([&told] { ++told; });
  std::vector<std::thread> writers;
  for (uint32_t i = 0; i < 4; ++i) {
    writers.emplace_back([&have, i] {
      for (uint32_t chunk = i; chunk < 10000; chunk += 4) have.Add(chunk);
    });
  }
  while (!have.complete()) EXPECT_LE(have.count(), 10000u);
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(told, 10000);
}

}  // namespace
}  // namespace tensorcast::availability_test
