#include "core/memory/extent_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace tensorcast {
namespace {

using Ranges = std::vector<GranuleRange>;

uint64_t TotalOf(const Ranges& ranges) {
  uint64_t total = 0;
  for (const GranuleRange& range : ranges) total += range.count;
  return total;
}

TEST(ExtentAllocator, GivesOneRangeWhileOneIsLargeEnough) {
  ExtentAllocator allocator(10);
  EXPECT_EQ(allocator.Allocate(4), (Ranges{{0, 4}}));
  EXPECT_EQ(allocator.Allocate(6), (Ranges{{4, 6}}));
  EXPECT_EQ(allocator.free_granules(), 0u);
}

TEST(ExtentAllocator, TakesTheSmallestRangeThatIsLargeEnough) {
  ExtentAllocator allocator(20);
  ASSERT_TRUE(allocator.Allocate(20).has_value());
  allocator.Free({0, 8});
  allocator.Free({10, 3});
  allocator.Free({15, 5});
  EXPECT_EQ(allocator.Allocate(3), (Ranges{{10, 3}}));
  EXPECT_EQ(allocator.Allocate(4), (Ranges{{15, 4}}));
}

TEST(ExtentAllocator, UsesTheFewestPiecesInAscendingOrderWhenNoRangeIsLargeEnough) {
  ExtentAllocator allocator(20);
  ASSERT_TRUE(allocator.Allocate(20).has_value());
  allocator.Free({0, 2});
  allocator.Free({4, 5});
  allocator.Free({12, 4});
  EXPECT_EQ(allocator.Allocate(7), (Ranges{{0, 2}, {4, 5}}));
  EXPECT_EQ(allocator.free_granules(), 4u);
}

TEST(ExtentAllocator, FailsOnlyWhenFewerGranulesAreFreeAndThenChangesNothing) {
  ExtentAllocator allocator(4);
  EXPECT_FALSE(allocator.Allocate(5).has_value());
  EXPECT_EQ(allocator.free_granules(), 4u);
  EXPECT_EQ(allocator.Allocate(4), (Ranges{{0, 4}}));
  EXPECT_FALSE(allocator.Allocate(1).has_value());
}

TEST(ExtentAllocator, NothingIsAlwaysThere) {
  ExtentAllocator allocator(0);
  EXPECT_EQ(allocator.Allocate(0), Ranges{});
  EXPECT_FALSE(allocator.Allocate(1).has_value());
}

TEST(ExtentAllocator, JoinsNeighboursOnBothSides) {
  ExtentAllocator allocator(12);
  ASSERT_TRUE(allocator.Allocate(12).has_value());
  allocator.Free({0, 4});
  allocator.Free({8, 4});
  EXPECT_EQ(allocator.free_ranges(), 2u);
  allocator.Free({4, 4});
  EXPECT_EQ(allocator.free_ranges(), 1u);
  EXPECT_EQ(allocator.Allocate(12), (Ranges{{0, 12}}));
}

TEST(ExtentAllocatorDeathTest, GivingBackTwiceIsCaught) {
  ExtentAllocator allocator(8);
  ASSERT_TRUE(allocator.Allocate(8).has_value());
  allocator.Free({2, 3});
  EXPECT_DEATH(allocator.Free({3, 1}), "given back twice");
  EXPECT_DEATH(allocator.Free({1, 2}), "given back twice");
}

// The simplest description of what the allocator should do: one bool a granule.
class Model {
 public:
  explicit Model(uint64_t granules) : used_(granules, false) {}

  uint64_t free_granules() const { return std::ranges::count(used_, false); }

  std::vector<uint64_t> FreeRuns() const {
    std::vector<uint64_t> runs;
    for (size_t i = 0; i < used_.size(); ++i) {
      if (used_[i]) continue;
      if (i == 0 || used_[i - 1]) runs.push_back(0);
      ++runs.back();
    }
    return runs;
  }

  void Take(const GranuleRange& range) { Flip(range, true); }
  void Give(const GranuleRange& range) { Flip(range, false); }

 private:
  void Flip(const GranuleRange& range, bool used) {
    ASSERT_GT(range.count, 0u);
    ASSERT_LE(range.first + range.count, used_.size());
    for (uint64_t i = range.first; i < range.first + range.count; ++i) {
      ASSERT_NE(used_[i], used) << "granule " << i;
      used_[i] = used;
    }
  }

  std::vector<bool> used_;
};

// The fewest free runs that hold `count` granules: the largest first.
size_t FewestPieces(std::vector<uint64_t> runs, uint64_t count) {
  std::ranges::sort(runs, std::greater<>());
  size_t pieces = 0;
  for (uint64_t held = 0; held < count; ++pieces) held += runs[pieces];
  return pieces;
}

TEST(ExtentAllocator, AgreesWithAModelOverRandomHistories) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const uint64_t granules = 1 + random() % 200;
    ExtentAllocator allocator(granules);
    Model model(granules);
    std::vector<Ranges> held;
    for (int step = 0; step < 400; ++step) {
      if (held.empty() || random() % 2 == 0) {
        const uint64_t wanted = random() % (1 + granules / (1 + random() % 8));
        const bool enough = wanted <= model.free_granules();
        const std::vector<uint64_t> runs = model.FreeRuns();
        auto got = allocator.Allocate(wanted);
        ASSERT_EQ(got.has_value(), enough);
        if (!enough) continue;
        ASSERT_EQ(TotalOf(*got), wanted);
        ASSERT_TRUE(std::ranges::is_sorted(*got, {}, &GranuleRange::first));
        ASSERT_EQ(got->size(), FewestPieces(runs, wanted));
        for (const GranuleRange& range : *got) model.Take(range);
        held.push_back(*std::move(got));
      } else {
        std::swap(held[random() % held.size()], held.back());
        for (const GranuleRange& range : held.back()) {
          allocator.Free(range);
          model.Give(range);
        }
        held.pop_back();
      }
      ASSERT_FALSE(HasFatalFailure());
      ASSERT_EQ(allocator.free_granules(), model.free_granules());
      ASSERT_EQ(allocator.free_ranges(), model.FreeRuns().size()) << "free neighbours are joined";
    }
    for (const Ranges& ranges : held) {
      for (const GranuleRange& range : ranges) allocator.Free(range);
    }
    EXPECT_EQ(allocator.Allocate(granules), (Ranges{{0, granules}})) << "all came back, in one piece";
  }
}

}  // namespace
}  // namespace tensorcast
