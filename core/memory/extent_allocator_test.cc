#include "core/memory/extent_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace tensorcast::extent_allocator_test {
namespace {

using Ranges = std::vector<GranuleRange>;

uint64_t TotalOf(const Ranges& ranges) {
  uint64_t total = 0;
  for (const GranuleRange& range : ranges) total += range.count;
  return total;
}

TEST(ExtentAllocator, Allocate_GivesOneRangeWhenOneIsLargeEnough) {
  ExtentAllocator allocator(10, 10);
  EXPECT_EQ(allocator.Allocate(4), (Ranges{{0, 4}}));
  EXPECT_EQ(allocator.Allocate(6), (Ranges{{4, 6}}));
  EXPECT_EQ(allocator.free_granules(), 0u);
}

TEST(ExtentAllocator, Allocate_TakesSmallestRangeThatIsLargeEnough) {
  ExtentAllocator allocator(20, 20);
  ASSERT_TRUE(allocator.Allocate(20).has_value());
  allocator.Free({0, 8});
  allocator.Free({10, 3});
  allocator.Free({15, 5});
  EXPECT_EQ(allocator.Allocate(3), (Ranges{{10, 3}}));
  EXPECT_EQ(allocator.Allocate(4), (Ranges{{15, 4}}));
}

TEST(ExtentAllocator, NoLargeRange_UsesMinPiecesInAscendingOrder) {
  ExtentAllocator allocator(20, 20);
  ASSERT_TRUE(allocator.Allocate(20).has_value());
  allocator.Free({0, 2});
  allocator.Free({4, 5});
  allocator.Free({12, 4});
  EXPECT_EQ(allocator.Allocate(7), (Ranges{{0, 2}, {4, 5}}));
  EXPECT_EQ(allocator.free_granules(), 4u);
}

TEST(ExtentAllocator, Allocate_FailsOnlyWhenTooFewGranulesAreFree) {
  ExtentAllocator allocator(4, 4);
  EXPECT_FALSE(allocator.Allocate(5).has_value());
  EXPECT_EQ(allocator.free_granules(), 4u);
  EXPECT_EQ(allocator.Allocate(4), (Ranges{{0, 4}}));
  EXPECT_FALSE(allocator.Allocate(1).has_value());
}

TEST(ExtentAllocator, AllocateNothing_AlwaysSucceeds) {
  ExtentAllocator allocator(0, 1);
  EXPECT_EQ(allocator.Allocate(0), Ranges{});
  EXPECT_FALSE(allocator.Allocate(1).has_value());
}

TEST(ExtentAllocator, Free_JoinsAdjacentRanges) {
  ExtentAllocator allocator(12, 12);
  ASSERT_TRUE(allocator.Allocate(12).has_value());
  allocator.Free({0, 4});
  allocator.Free({8, 4});
  EXPECT_EQ(allocator.free_ranges(), 2u);
  allocator.Free({4, 4});
  EXPECT_EQ(allocator.free_ranges(), 1u);
  EXPECT_EQ(allocator.Allocate(12), (Ranges{{0, 12}}));
}

TEST(ExtentAllocator, GranuleRanges_EndAtSegmentBorders) {
  ExtentAllocator allocator(10, 4);
  EXPECT_EQ(allocator.free_ranges(), 3u);
  const auto all = allocator.Allocate(10);
  EXPECT_EQ(all, (Ranges{{0, 4}, {4, 4}, {8, 2}}));
  for (const GranuleRange& range : *all) allocator.Free(range);
  EXPECT_EQ(allocator.free_ranges(), 3u) << "nor are free ones joined";
}

TEST(ExtentAllocator, Pieces_ComeFromTheFullestSegmentThatHasEnough) {
  ExtentAllocator allocator(24, 8);
  ASSERT_TRUE(allocator.Allocate(24).has_value());
  for (const GranuleRange& range : {GranuleRange{0, 3}, {4, 3}, {8, 2}, {11, 3}, {16, 1}}) {
    allocator.Free(range);
  }
  EXPECT_EQ(allocator.Allocate(5), (Ranges{{8, 2}, {11, 3}}));
  EXPECT_EQ(allocator.Allocate(7), (Ranges{{0, 3}, {4, 3}, {16, 1}}));
}

TEST(ExtentAllocator, RequestLargerThanASegment_TakesMinSegments) {
  ExtentAllocator allocator(32, 8);
  ASSERT_TRUE(allocator.Allocate(32).has_value());
  for (const GranuleRange& range : {GranuleRange{0, 6}, {8, 4}, {16, 8}, {24, 2}}) allocator.Free(range);
  EXPECT_EQ(allocator.Allocate(10), (Ranges{{16, 8}, {24, 2}}));
  EXPECT_EQ(allocator.Allocate(9), (Ranges{{0, 6}, {8, 3}}));
}

TEST(ExtentAllocator, AllocateWhere_TakesSmallestRangeOfMatchingSegments) {
  ExtentAllocator allocator(32, 8);
  ASSERT_TRUE(allocator.Allocate(32).has_value());
  for (const GranuleRange& range : {GranuleRange{0, 3}, {8, 6}, {17, 2}, {24, 4}}) allocator.Free(range);
  const auto odd = [](uint64_t segment) { return segment % 2 == 1; };
  EXPECT_EQ(allocator.AllocateWhere(2, odd), (GranuleRange{24, 2}));
  EXPECT_EQ(allocator.AllocateWhere(2, odd), (GranuleRange{26, 2}));
  EXPECT_EQ(allocator.AllocateWhere(6, odd), (GranuleRange{8, 6}));
  EXPECT_EQ(allocator.AllocateWhere(1, odd), std::nullopt);
  EXPECT_EQ(allocator.free_granules(), 5u);
}

TEST(ExtentAllocatorDeathTest, FreeTwice_Dies) {
  ExtentAllocator allocator(8, 8);
  ASSERT_TRUE(allocator.Allocate(8).has_value());
  allocator.Free({2, 3});
  EXPECT_DEATH(allocator.Free({3, 1}), "given back twice");
  EXPECT_DEATH(allocator.Free({1, 2}), "given back twice");
}

// The simplest description of what the allocator should do: one bool a granule.
class Model {
 public:
  Model(uint64_t granules, uint64_t segment_granules)
      : segment_granules_(segment_granules), used_(granules, false) {}

  uint64_t free_granules() const { return std::ranges::count(used_, false); }

  // The free runs of each segment.
  std::vector<std::vector<uint64_t>> FreeRuns() const {
    std::vector<std::vector<uint64_t>> segments;
    for (size_t i = 0; i < used_.size(); ++i) {
      const bool begins = i % segment_granules_ == 0;
      if (begins) segments.emplace_back();
      if (used_[i]) continue;
      if (begins || used_[i - 1]) segments.back().push_back(0);
      ++segments.back().back();
    }
    return segments;
  }

  void Take(const GranuleRange& range) { Flip(range, true); }
  void Give(const GranuleRange& range) { Flip(range, false); }

 private:
  void Flip(const GranuleRange& range, bool used) {
    ASSERT_GT(range.count, 0u);
    ASSERT_LE(range.first + range.count, used_.size());
    ASSERT_EQ(range.first / segment_granules_, (range.first + range.count - 1) / segment_granules_);
    for (uint64_t i = range.first; i < range.first + range.count; ++i) {
      ASSERT_NE(used_[i], used) << "granule " << i;
      used_[i] = used;
    }
  }

  const uint64_t segment_granules_;
  std::vector<bool> used_;
};

// The min number of runs (or segments) that hold `count` granules: the largest first.
size_t MinRuns(std::vector<uint64_t> runs, uint64_t count) {
  std::ranges::sort(runs, std::greater<>());
  size_t pieces = 0;
  for (uint64_t held = 0; held < count; ++pieces) held += runs[pieces];
  return pieces;
}

// That `got` is what Allocate promises, given what was free before.
void CheckChoice(const Ranges& got, const std::vector<std::vector<uint64_t>>& runs, uint64_t wanted,
                 uint64_t segment_granules) {
  std::vector<uint64_t> free_in_segment;
  uint64_t largest_run = 0;
  for (const std::vector<uint64_t>& segment : runs) {
    free_in_segment.push_back(std::accumulate(segment.begin(), segment.end(), uint64_t{0}));
    for (const uint64_t run : segment) largest_run = std::max(largest_run, run);
  }
  std::set<uint64_t> used;
  for (const GranuleRange& range : got) used.insert(range.first / segment_granules);
  ASSERT_EQ(used.size(), MinRuns(free_in_segment, wanted)) << "not the min number of segments";
  if (wanted > 0 && wanted <= largest_run) {
    ASSERT_EQ(got.size(), 1u);
  } else if (used.size() == 1) {
    const uint64_t chosen = free_in_segment[*used.begin()];
    for (const uint64_t other : free_in_segment) ASSERT_TRUE(other < wanted || other >= chosen);
    ASSERT_EQ(got.size(), MinRuns(runs[*used.begin()], wanted));
  }
}

TEST(ExtentAllocator, RandomAllocations_AgreeWithModel) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const uint64_t granules = 1 + random() % 200;
    const uint64_t segment_granules = seed % 2 == 0 ? granules : 1 + random() % granules;
    ExtentAllocator allocator(granules, segment_granules);
    Model model(granules, segment_granules);
    const uint64_t free_runs_at_first = allocator.free_ranges();
    std::vector<Ranges> held;
    for (int step = 0; step < 400; ++step) {
      if (held.empty() || random() % 2 == 0) {
        const uint64_t wanted = random() % (1 + granules / (1 + random() % 8));
        const bool enough = wanted <= model.free_granules();
        const std::vector<std::vector<uint64_t>> runs = model.FreeRuns();
        auto got = allocator.Allocate(wanted);
        ASSERT_EQ(got.has_value(), enough);
        if (!enough) continue;
        ASSERT_EQ(TotalOf(*got), wanted);
        ASSERT_TRUE(std::ranges::is_sorted(*got, {}, &GranuleRange::first));
        CheckChoice(*got, runs, wanted, segment_granules);
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
      uint64_t runs = 0;
      for (const std::vector<uint64_t>& segment : model.FreeRuns()) runs += segment.size();
      ASSERT_EQ(allocator.free_ranges(), runs) << "free neighbours are joined";
    }
    for (const Ranges& ranges : held) {
      for (const GranuleRange& range : ranges) allocator.Free(range);
    }
    EXPECT_EQ(allocator.free_granules(), granules);
    EXPECT_EQ(allocator.free_ranges(), free_runs_at_first) << "all came back, in one piece a segment";
  }
}

}  // namespace
}  // namespace tensorcast::extent_allocator_test
