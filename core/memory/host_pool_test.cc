#include "core/memory/host_pool.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/testing/no_threads.h"
#include "core/memory/host_limits.h"

namespace tensorcast::host_pool_test {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

std::unique_ptr<HostPool> MakePool(uint64_t bytes, int prefault_threads = 0) {
  auto pool = HostPool::Create({.bytes = bytes, .prefault_threads = prefault_threads});
  EXPECT_TRUE(pool.ok()) << pool.status();
  return *std::move(pool);
}

HostAllocation MustAllocate(HostPool& pool, uint64_t bytes) {
  auto allocation = pool.Allocate(bytes);
  EXPECT_TRUE(allocation.ok()) << allocation.status();
  return *std::move(allocation);
}

uint64_t ResidentBytes(const HostPool& pool) {
  struct stat info = {};
  uint64_t bytes = 0;
  for (const PoolSegment& segment : pool.segments()) {
    EXPECT_EQ(fstat(segment.fd, &info), 0);
    bytes += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

TEST(HostPool, PoolSize_IsRoundedUpToWholeGranules) {
  const auto pool = MakePool(3 * kMiB);
  EXPECT_EQ(pool->bytes(), 4 * kMiB);
  EXPECT_EQ(pool->stats().capacity_bytes, 4 * kMiB);
}

TEST(HostPool, PoolLargerThanAnyHost_IsRefused) {
  for (uint64_t bytes : {std::numeric_limits<uint64_t>::max(), uint64_t{1} << 60}) {
    EXPECT_EQ(HostPool::Create({.bytes = bytes}).status().code(), absl::StatusCode::kResourceExhausted);
  }
}

TEST(HostPool, EmptyPoolAndNegativeThreads_AreRefused) {
  EXPECT_EQ(HostPool::Create({.bytes = 0}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(HostPool::Create({.bytes = kMiB, .prefault_threads = -1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(HostPool, HugePages_AreUsedWhenHostHasEnough) {
  const bool enough = FreeHugePageBytes() >= 4 * kMiB;
  const auto pool = MakePool(4 * kMiB);
  EXPECT_EQ(pool->huge_pages(), enough);
  const auto without = HostPool::Create({.bytes = 4 * kMiB, .use_huge_pages = false});
  ASSERT_TRUE(without.ok());
  EXPECT_FALSE((*without)->huge_pages());
}

TEST(HostPool, SegmentSizeThatIsNotMultipleOfGranule_IsRefused) {
  for (const uint64_t segment_bytes : {uint64_t{0}, kMiB, 3 * kMiB}) {
    EXPECT_EQ(HostPool::Create({.bytes = 8 * kMiB, .segment_bytes = segment_bytes}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << segment_bytes;
  }
}

TEST(HostPool, Allocation_IsContiguousWherePossible) {
  const auto pool = MakePool(16 * kMiB);
  const HostAllocation allocation = MustAllocate(*pool, 7 * kMiB);
  EXPECT_EQ(allocation.bytes(), 7 * kMiB);
  EXPECT_EQ(allocation.extents(), (std::vector<ImageExtent>{{0, {0, 8 * kMiB}}}));
}

TEST(HostPool, FragmentedPool_AllocatesWhileEnoughBytesAreFree) {
  const auto pool = MakePool(32 * kMiB);
  std::vector<HostAllocation> granules;
  for (int i = 0; i < 16; ++i) granules.push_back(MustAllocate(*pool, kGranuleBytes));
  for (int i = 0; i < 16; i += 2) granules[i] = {};
  const HostAllocation scattered = MustAllocate(*pool, 8 * kGranuleBytes);
  EXPECT_EQ(scattered.extents().size(), 8u);
  EXPECT_FALSE(pool->Allocate(1).ok());
}

TEST(HostPool, FullPool_ErrorSaysWantedAndFreeBytes) {
  const auto pool = MakePool(8 * kMiB);
  const HostAllocation held = MustAllocate(*pool, 6 * kMiB);
  const absl::Status status = pool->Allocate(3 * kMiB).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("allocate ", 3 * kMiB))) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat(": ", 2 * kMiB))) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("of ", 8 * kMiB))) << status;
  EXPECT_FALSE(pool->Allocate(std::numeric_limits<uint64_t>::max()).ok());
}

TEST(HostPool, EmptyAllocation_TakesNothing) {
  const auto pool = MakePool(2 * kMiB);
  const HostAllocation all = MustAllocate(*pool, 2 * kMiB);
  const HostAllocation nothing = MustAllocate(*pool, 0);
  EXPECT_EQ(nothing.bytes(), 0u);
  EXPECT_TRUE(nothing.extents().empty());
  EXPECT_TRUE(nothing.Spans(0, 0).empty());
}

TEST(HostPool, DestroyedAllocation_ReturnsItsGranules) {
  const auto pool = MakePool(8 * kMiB);
  {
    HostAllocation first = MustAllocate(*pool, 8 * kMiB);
    HostAllocation moved = std::move(first);
    EXPECT_EQ(pool->stats().used_bytes, 8 * kMiB) << "moving gives nothing back";
    EXPECT_EQ(first.bytes(), 0u);
  }
  EXPECT_EQ(pool->stats().used_bytes, 0u);
  HostAllocation target = MustAllocate(*pool, 4 * kMiB);
  target = MustAllocate(*pool, 2 * kMiB);
  EXPECT_EQ(pool->stats().used_bytes, 2 * kMiB) << "assigning over gives the old one back";
}

TEST(HostPool, PoolStats_CountUseHighWaterAndFailures) {
  const auto pool = MakePool(8 * kMiB);
  {
    const HostAllocation brief = MustAllocate(*pool, 5 * kMiB);
  }
  const HostAllocation held = MustAllocate(*pool, 1);
  EXPECT_FALSE(pool->Allocate(8 * kMiB).ok());
  const PoolStats stats = pool->stats();
  EXPECT_EQ(stats.capacity_bytes, 8 * kMiB);
  EXPECT_EQ(stats.used_bytes, 2 * kMiB);
  EXPECT_EQ(stats.high_water_bytes, 6 * kMiB);
  EXPECT_EQ(stats.failed_allocations, 1u);
}

TEST(HostPool, Spans_CoverRangeAcrossExtents) {
  const auto pool = MakePool(8 * kMiB);
  HostAllocation hole = MustAllocate(*pool, 2 * kMiB);
  const HostAllocation wall = MustAllocate(*pool, 2 * kMiB);
  HostAllocation tail = MustAllocate(*pool, 4 * kMiB);
  hole = {};
  tail = {};
  const HostAllocation allocation = MustAllocate(*pool, 5 * kMiB);
  ASSERT_EQ(allocation.extents(),
            (std::vector<ImageExtent>{{0, {0, 2 * kMiB}}, {2 * kMiB, {4 * kMiB, 4 * kMiB}}}));

  const std::vector<HostSpan> spans = allocation.Spans(2 * kMiB - 10, 30);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].data(), pool->base() + 2 * kMiB - 10);
  EXPECT_EQ(spans[0].size(), 10u);
  EXPECT_EQ(spans[1].data(), pool->base() + 4 * kMiB);
  EXPECT_EQ(spans[1].size(), 20u);

  const std::vector<HostSpan> second_only = allocation.Spans(2 * kMiB, 3 * kMiB);
  ASSERT_EQ(second_only.size(), 1u);
  EXPECT_EQ(second_only[0].data(), pool->base() + 4 * kMiB);
  EXPECT_TRUE(allocation.Spans(5 * kMiB, 0).empty());
}

std::byte* ByteOf(const HostAllocation& allocation, uint64_t offset) {
  return allocation.Spans(offset, 1).front().data();
}

TEST(SparseAllocation, SparseAllocation_TakesOnlyGranulesOfItsRanges) {
  const auto pool = MakePool(16 * kMiB);
  const ByteRange ranges[] = {{9 * kMiB, 2 * kMiB}, {1, 10}, {0, 100}, {5 * kMiB, 0}, {7 * kMiB, 1}};
  EXPECT_EQ(GranuleBytes(ranges), 8 * kMiB);
  auto allocation = pool->Allocate(100 * kMiB, ranges);
  ASSERT_TRUE(allocation.ok()) << allocation.status();
  EXPECT_EQ(allocation->bytes(), 100 * kMiB);
  EXPECT_EQ(pool->stats().used_bytes, 8 * kMiB);
  EXPECT_EQ(allocation->extents(),
            (std::vector<ImageExtent>{{0, {0, 2 * kMiB}}, {6 * kMiB, {2 * kMiB, 6 * kMiB}}}));
}

TEST(SparseAllocation, Covers_IsTrueOnlyForRangesWithMemory) {
  const auto pool = MakePool(16 * kMiB);
  const ByteRange ranges[] = {{0, kMiB}, {6 * kMiB, 3 * kMiB}, {20 * kMiB, 5}};
  const HostAllocation allocation = *pool->Allocate(20 * kMiB + 10, ranges);
  for (const auto& [offset, bytes, covered] :
       std::vector<std::tuple<uint64_t, uint64_t, bool>>{{0, 2 * kMiB, true},
                                                         {0, 2 * kMiB + 1, false},
                                                         {2 * kMiB, 1, false},
                                                         {2 * kMiB, 0, true},
                                                         {6 * kMiB - 1, 2, false},
                                                         {7 * kMiB, 3 * kMiB, true},
                                                         {9 * kMiB, 2 * kMiB, false},
                                                         {20 * kMiB, 10, true},
                                                         {20 * kMiB, 11, false},
                                                         {20 * kMiB + 11, 0, false},
                                                         {1, std::numeric_limits<uint64_t>::max(), false}}) {
    EXPECT_EQ(allocation.Covers(offset, bytes), covered) << offset << " + " << bytes;
  }
  EXPECT_FALSE(HostAllocation().Covers(0, 1));
}

TEST(SparseAllocation, Grow_AddsMissingGranulesAndKeepsOldAllocation) {
  const auto pool = MakePool(16 * kMiB);
  const ByteRange first[] = {{0, 2 * kMiB}, {8 * kMiB, 2 * kMiB}};
  const ByteRange more[] = {{kMiB, 4 * kMiB}, {8 * kMiB, 1}};
  auto old = std::make_optional(*pool->Allocate(12 * kMiB, first));
  *ByteOf(*old, 0) = std::byte{1};
  *ByteOf(*old, 9 * kMiB) = std::byte{9};
  EXPECT_EQ(old->MissingBytes(more), 4 * kMiB);
  HostAllocation grown = *pool->Grow(*old, more);
  EXPECT_EQ(pool->stats().used_bytes, 8 * kMiB);
  EXPECT_EQ(grown.MissingBytes(more), 0u);
  EXPECT_TRUE(grown.Covers(0, 6 * kMiB) && grown.Covers(8 * kMiB, 2 * kMiB));
  EXPECT_FALSE(grown.Covers(6 * kMiB, 1));
  EXPECT_FALSE(old->Covers(2 * kMiB, 1));
  EXPECT_EQ(ByteOf(grown, 0), ByteOf(*old, 0)) << "the same memory";
  old.reset();
  EXPECT_EQ(pool->stats().used_bytes, 8 * kMiB) << "the grown one names them all";
  EXPECT_EQ(*ByteOf(grown, 0), std::byte{1});
  EXPECT_EQ(*ByteOf(grown, 9 * kMiB), std::byte{9});
  grown = {};
  EXPECT_EQ(pool->stats().used_bytes, 0u);
}

TEST(SparseAllocation, GrowInFullPool_FailsAndChangesNothing) {
  const auto pool = MakePool(8 * kMiB);
  const ByteRange first[] = {{0, 4 * kMiB}};
  const ByteRange all[] = {{0, 10 * kMiB}};
  const HostAllocation old = *pool->Allocate(10 * kMiB, first);
  const absl::Status status = pool->Grow(old, all).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("allocate ", 6 * kMiB))) << status;
  EXPECT_EQ(pool->stats().used_bytes, 4 * kMiB);
  EXPECT_EQ(pool->stats().failed_allocations, 1u);
}

TEST(SparseAllocation, Only_KeepsGranulesOfGivenRanges) {
  const auto pool = MakePool(16 * kMiB);
  auto whole = std::make_optional(MustAllocate(*pool, 11 * kMiB));
  *ByteOf(*whole, 4 * kMiB) = std::byte{4};
  const ByteRange kept[] = {{10 * kMiB, kMiB}, {5 * kMiB, 2 * kMiB}};
  auto only = std::make_optional(whole->Only(kept));
  EXPECT_EQ(pool->stats().used_bytes, 12 * kMiB);
  whole.reset();
  EXPECT_EQ(pool->stats().used_bytes, 6 * kMiB) << "what no allocation names any more is free";
  EXPECT_EQ(only->bytes(), 11 * kMiB);
  EXPECT_TRUE(only->Covers(4 * kMiB, 4 * kMiB) && only->Covers(10 * kMiB, kMiB));
  EXPECT_FALSE(only->Covers(8 * kMiB, 1));
  EXPECT_EQ(*ByteOf(*only, 4 * kMiB), std::byte{4});
  const HostAllocation nothing = only->Only({});
  EXPECT_TRUE(nothing.extents().empty());
  const ByteRange absent[] = {{0, 2 * kMiB}};
  EXPECT_TRUE(only->Only(absent).extents().empty()) << "what is not here cannot be kept";
  only.reset();
  EXPECT_EQ(pool->stats().used_bytes, 0u);
}

// Random histories of allocations of one image against a model: what each covers, that those made of another
// share its bytes, and that the pool counts each granule once.
TEST(SparseAllocation, RandomSparseAllocations_AgreeWithModel) {
  constexpr uint64_t kGranules = 24;
  constexpr uint64_t kImageBytes = kGranules * kGranuleBytes - 77;
  struct Modelled {
    HostAllocation allocation;
    std::array<int, kGranules> marks{};  // what each granule begins with; 0: it has none
  };
  const auto pool = MakePool(64 * kGranuleBytes);
  std::mt19937 random(20261122);
  int next_mark = 1;
  std::vector<Modelled> all;
  const auto random_ranges = [&] {
    std::vector<ByteRange> ranges(random() % 5);
    for (ByteRange& range : ranges) {
      range.offset = random() % kImageBytes;
      range.bytes = random() % (std::min<uint64_t>(kImageBytes - range.offset, 5 * kGranuleBytes) + 1);
    }
    return ranges;
  };
  const auto touched = [](const std::vector<ByteRange>& ranges, uint64_t granule) {
    return std::ranges::any_of(ranges, [&](const ByteRange& range) {
      return range.bytes > 0 && range.offset < (granule + 1) * kGranuleBytes &&
             range.offset + range.bytes > granule * kGranuleBytes;
    });
  };
  for (int round = 0; round < 3000; ++round) {
    const std::vector<ByteRange> ranges = random_ranges();
    const uint32_t what = all.empty() ? 0 : random() % 4;
    if (what == 0) {
      auto made = pool->Allocate(kImageBytes, ranges);
      if (!made.ok()) {
        all.clear();
        continue;
      }
      all.push_back({*std::move(made), {}});
    } else if (what == 1) {
      const Modelled& old = all[random() % all.size()];
      auto made = pool->Grow(old.allocation, ranges);
      if (!made.ok()) {
        all.clear();
        continue;
      }
      all.push_back({*std::move(made), old.marks});
    } else if (what == 2) {
      const Modelled& old = all[random() % all.size()];
      Modelled made{old.allocation.Only(ranges), old.marks};
      for (uint64_t g = 0; g < kGranules; ++g) {
        if (!touched(ranges, g)) made.marks[g] = 0;
      }
      all.push_back(std::move(made));
    } else {
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(random() % all.size()));
    }
    if (what < 2) {
      for (uint64_t g = 0; g < kGranules; ++g) {
        if (!touched(ranges, g) || all.back().marks[g] != 0) continue;
        all.back().marks[g] = next_mark++;
        std::memcpy(ByteOf(all.back().allocation, g * kGranuleBytes), &all.back().marks[g], sizeof(int));
      }
    }
    std::set<int> distinct;
    for (const Modelled& one : all) {
      for (uint64_t g = 0; g < kGranules; ++g) {
        ASSERT_EQ(one.allocation.Covers(g * kGranuleBytes, 4), one.marks[g] != 0) << "round " << round;
        if (one.marks[g] == 0) continue;
        int found = 0;
        std::memcpy(&found, ByteOf(one.allocation, g * kGranuleBytes), sizeof(int));
        ASSERT_EQ(found, one.marks[g]) << "round " << round << ", granule " << g;
        distinct.insert(found);
      }
    }
    ASSERT_EQ(pool->stats().used_bytes, distinct.size() * kGranuleBytes) << "round " << round;
  }
  all.clear();
  EXPECT_EQ(pool->stats().used_bytes, 0u);
}

TEST(HostPoolDeathTest, InvalidRangeAndOutlivedPool_Die) {
  auto pool = MakePool(4 * kMiB);
  const HostAllocation allocation = MustAllocate(*pool, 100);
  EXPECT_DEATH(allocation.Spans(90, 11), "of an allocation of 100");
  EXPECT_DEATH(allocation.Spans(101, std::numeric_limits<uint64_t>::max()), "of an allocation of 100");
  const ByteRange outside[] = {{90, 11}};
  EXPECT_DEATH(allocation.Only(outside), "of an allocation of 100");
  const HostAllocation nothing = allocation.Only({});
  EXPECT_DEATH(nothing.Spans(0, 1), "byte 0 of an allocation of 100 has no memory");
  EXPECT_DEATH(pool.reset(), "outlives its pool");
}

class SegmentedPool : public ::testing::Test {
 protected:
  static constexpr uint64_t kSegment = 4 * kMiB;
  std::unique_ptr<HostPool> pool_ =
      *HostPool::Create({.bytes = 3 * kSegment + 2 * kMiB, .segment_bytes = kSegment, .prefault_threads = 0});
};

TEST_F(SegmentedPool, Segments_AreSealedMemfdsMappedSideBySide) {
  ASSERT_EQ(pool_->segments().size(), 4u);
  for (uint64_t offset = 0; offset < pool_->bytes(); offset += kGranuleBytes) {
    pool_->base()[offset] = static_cast<std::byte>(1 + offset / kGranuleBytes);
  }
  uint64_t end = 0;
  for (const PoolSegment& segment : pool_->segments()) {
    EXPECT_EQ(segment.offset, end);
    end += segment.bytes;
    struct stat info = {};
    ASSERT_EQ(fstat(segment.fd, &info), 0);
    EXPECT_EQ(static_cast<uint64_t>(info.st_size), segment.bytes);
    EXPECT_EQ(fcntl(segment.fd, F_GET_SEALS),
              F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
    for (uint64_t offset = 0; offset < segment.bytes; offset += kGranuleBytes) {
      std::byte byte{};
      ASSERT_EQ(pread(segment.fd, &byte, 1, static_cast<off_t>(offset)), 1);
      EXPECT_EQ(byte, static_cast<std::byte>(1 + (segment.offset + offset) / kGranuleBytes));
    }
  }
  EXPECT_EQ(end, pool_->bytes());
}

TEST_F(SegmentedPool, Extents_EndAtSegmentBorders) {
  const HostAllocation all = MustAllocate(*pool_, pool_->bytes());
  ASSERT_EQ(all.extents().size(), 4u);
  for (const ImageExtent& part : all.extents()) EXPECT_EQ(part.image_offset, part.extent.offset);
  const std::vector<HostSpan> spans = all.Spans(kSegment - 1, 2);
  ASSERT_EQ(spans.size(), 2u) << "one a segment, though they touch";
  EXPECT_EQ(spans[0].data() + 1, spans[1].data());
}

TEST_F(SegmentedPool, Grow_JoinsAdjacentExtentsWithinOneSegment) {
  const ByteRange first[] = {{0, kGranuleBytes}};
  const ByteRange all[] = {{0, 4 * kGranuleBytes}};
  const HostAllocation small = *pool_->Allocate(4 * kGranuleBytes, first);
  const HostAllocation last = MustAllocate(*pool_, kGranuleBytes);
  const HostAllocation grown = *pool_->Grow(small, all);
  uint64_t bytes = 0;
  for (const ImageExtent& part : grown.extents()) {
    EXPECT_EQ(part.extent.offset / kSegment, (part.extent.offset + part.extent.bytes - 1) / kSegment);
    bytes += part.extent.bytes;
  }
  EXPECT_EQ(bytes, 4 * kGranuleBytes);
}

TEST_F(SegmentedPool, SegmentedPool_IsPrefaultedWhole) {
  const auto pool = HostPool::Create({.bytes = 80 * kMiB, .segment_bytes = 12 * kMiB, .prefault_threads = 2});
  ASSERT_TRUE(pool.ok()) << pool.status();
  (*pool)->WaitPrefaulted();
  EXPECT_TRUE((*pool)->prefaulted());
  EXPECT_GE(ResidentBytes(**pool), 80 * kMiB);
}

class SealedPool : public ::testing::Test {
 protected:
  SealedPool() : pool_(MakePool(4 * kMiB)) {
    // The strongest thing that a process with the descriptor could try.
    reopened_ = open(absl::StrCat("/proc/self/fd/", fd()).c_str(), O_RDWR | O_CLOEXEC);
    EXPECT_GE(reopened_, 0) << strerror(errno);
  }
  ~SealedPool() override { close(reopened_); }

  int fd() const { return pool_->segments().front().fd; }

  std::unique_ptr<HostPool> pool_;
  int reopened_ = -1;
};

TEST_F(SealedPool, SealedSegment_CanBeMappedForReading) {
  const HostAllocation allocation = MustAllocate(*pool_, 100);
  const HostSpan bytes = allocation.Spans(0, 100)[0];
  for (int fd : {fd(), reopened_}) {
    void* mapping = mmap(nullptr, pool_->bytes(), PROT_READ, MAP_SHARED, fd, 0);
    ASSERT_NE(mapping, MAP_FAILED) << strerror(errno);
    std::memset(bytes.data(), 0x5a + fd, bytes.size());
    EXPECT_EQ(std::memcmp(static_cast<std::byte*>(mapping) + allocation.extents()[0].extent.offset,
                          bytes.data(), 100),
              0);
    munmap(mapping, pool_->bytes());
  }
}

TEST_F(SealedPool, SealedSegment_CannotBeMappedForWriting) {
  for (int fd : {fd(), reopened_}) {
    EXPECT_EQ(mmap(nullptr, pool_->bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    EXPECT_EQ(errno, EPERM);
  }
}

TEST_F(SealedPool, ReadOnlyMappingOfSegment_CannotBeMadeWritable) {
  void* mapping = mmap(nullptr, pool_->bytes(), PROT_READ, MAP_SHARED, reopened_, 0);
  ASSERT_NE(mapping, MAP_FAILED) << strerror(errno);
  EXPECT_NE(mprotect(mapping, pool_->bytes(), PROT_READ | PROT_WRITE), 0);
  EXPECT_EQ(errno, EACCES);
  munmap(mapping, pool_->bytes());
}

TEST_F(SealedPool, SealedSegment_CannotBeWrittenResizedOrUnsealed) {
  EXPECT_LT(pwrite(reopened_, "x", 1, 0), 0);
  EXPECT_NE(fallocate(reopened_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  EXPECT_NE(ftruncate(reopened_, 4096), 0);
  EXPECT_NE(ftruncate(reopened_, static_cast<off_t>(pool_->bytes() + 4096)), 0);
  EXPECT_NE(fcntl(reopened_, F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_EQ(fcntl(fd(), F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
  EXPECT_NE(fcntl(fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(HostPoolPrefault, Prefault_TouchesEveryPageInBackground) {
  const auto pool = MakePool(200 * kMiB, /*prefault_threads=*/2);
  pool->WaitPrefaulted();
  EXPECT_TRUE(pool->prefaulted());
  EXPECT_GE(ResidentBytes(*pool), pool->bytes());
}

TEST(HostPoolPrefault, PoolWithoutPrefaultThreads_GetsPagesAtFirstTouch) {
  const auto pool = HostPool::Create({.bytes = 8 * kMiB, .use_huge_pages = false, .prefault_threads = 0});
  ASSERT_TRUE(pool.ok());
  (*pool)->WaitPrefaulted();
  EXPECT_FALSE((*pool)->prefaulted());
  EXPECT_EQ(ResidentBytes(**pool), 0u);
  (*pool)->base()[5 * kMiB] = std::byte{1};
  EXPECT_GT(ResidentBytes(**pool), 0u);
}

TEST(HostPoolPrefault, PrefaultWithoutThreads_LeavesPagesToFirstTouch) {
  const bool tried = testing::WithoutThreads([] {
    const auto pool = MakePool(4 * kMiB, /*prefault_threads=*/2);
    pool->WaitPrefaulted();
    EXPECT_EQ(ResidentBytes(*pool), 0u);
  });
  if (!tried) GTEST_SKIP() << "the kernel does not let this test refuse threads";
}

TEST(HostPoolPrefault, Prefault_KeepsBytesInUse) {
  const auto pool = MakePool(128 * kMiB, /*prefault_threads=*/1);
  const HostAllocation allocation = MustAllocate(*pool, 128 * kMiB);
  const HostSpan bytes = allocation.Spans(0, allocation.bytes())[0];
  for (uint64_t i = 0; i < bytes.size(); i += 4096) bytes[i] = static_cast<std::byte>(i >> 12);
  pool->WaitPrefaulted();
  for (uint64_t i = 0; i < bytes.size(); i += 4096) ASSERT_EQ(bytes[i], static_cast<std::byte>(i >> 12)) << i;
}

TEST(HostPoolPrefault, PoolDestructor_EndsRunningPrefault) {
  for (int i = 0; i < 5; ++i) MakePool(512 * kMiB, /*prefault_threads=*/3);
}

TEST(HostPoolThreads, ConcurrentAllocations_ShareNoByte) {
  const auto pool = MakePool(48 * kMiB);
  auto work = [&pool](uint32_t seed) {
    std::mt19937 random(seed);
    for (int round = 0; round < 200; ++round) {
      auto allocation = pool->Allocate(random() % (10 * kMiB));
      if (!allocation.ok()) continue;
      const auto mark = static_cast<std::byte>(1 + seed * 16 + round % 16);
      for (const HostSpan span : allocation->Spans(0, allocation->bytes())) span.front() = span.back() = mark;
      std::this_thread::yield();
      for (const HostSpan span : allocation->Spans(0, allocation->bytes())) {
        ASSERT_EQ(span.front(), mark);
        ASSERT_EQ(span.back(), mark);
      }
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t seed = 0; seed < 8; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool->stats().used_bytes, 0u);
}

// What a keeper has of a pool.
std::vector<KeptSegment> Keep(const HostPool& pool) {
  std::vector<KeptSegment> kept;
  for (size_t i = 0; i < pool.segments().size(); ++i) {
    kept.push_back({pool.segment_name(i), UniqueFd(fcntl(pool.segments()[i].fd, F_DUPFD_CLOEXEC, 0))});
  }
  return kept;
}

HostPool::Options SmallSegments(uint64_t segments) {
  return {.bytes = segments * 4 * kMiB,
          .segment_bytes = 4 * kMiB,
          .use_huge_pages = false,
          .prefault_threads = 0};
}

struct PoolOfBefore {
  std::vector<KeptSegment> kept;
  std::vector<NamedExtent> extents;  // of an image of 6 MiB, filled with 7
};

PoolOfBefore MakePoolOfBefore() {
  const auto pool = *HostPool::Create(SmallSegments(3));
  const HostAllocation image = MustAllocate(*pool, 6 * kMiB);
  for (const HostSpan& span : image.Spans(0, 6 * kMiB)) std::ranges::fill(span, std::byte{7});
  return {Keep(*pool), pool->Named(image)};
}

TEST(KeptSegments, KeptSegments_KeepTheirBytesInPlace) {
  PoolOfBefore before = MakePoolOfBefore();
  HostPool::Kept kept;
  kept.segments = std::move(before.kept);
  const auto pool = *HostPool::Create(SmallSegments(3), std::move(kept));
  const auto image = pool->Adopt(6 * kMiB, before.extents);
  ASSERT_TRUE(image.ok()) << image.status();
  for (const HostSpan& span : image->Spans(0, 6 * kMiB)) {
    EXPECT_TRUE(std::ranges::all_of(span, [](std::byte byte) { return byte == std::byte{7}; }));
  }
  EXPECT_EQ(pool->Named(*image), before.extents);
}

TEST(KeptSegments, KeptSegments_AreNotUsedForNewAllocations) {
  PoolOfBefore before = MakePoolOfBefore();
  HostPool::Kept kept;
  kept.segments = std::move(before.kept);
  std::vector<std::string> gone;
  kept.on_replaced = [&gone](const PoolSegment&, const std::string&, const std::string& name) {
    gone.push_back(name);
  };
  const auto pool = *HostPool::Create(SmallSegments(3), std::move(kept));
  const auto image = pool->Adopt(6 * kMiB, before.extents);
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_FALSE(pool->Allocate(2 * kMiB).ok());
  pool->DropUnusedKept();
  EXPECT_EQ(gone.size(), 1u);
  const HostAllocation fresh = MustAllocate(*pool, 4 * kMiB);
  for (const HostSpan& span : fresh.Spans(0, 4 * kMiB)) std::ranges::fill(span, std::byte{1});
  EXPECT_FALSE(pool->Allocate(2 * kMiB).ok());
}

TEST(KeptSegments, KeptSegments_AreReplacedAfterTheirLastAllocation) {
  PoolOfBefore before = MakePoolOfBefore();
  HostPool::Kept kept;
  kept.segments = std::move(before.kept);
  const auto pool = *HostPool::Create(SmallSegments(3), std::move(kept));
  std::optional<HostAllocation> image = *pool->Adopt(6 * kMiB, before.extents);
  pool->DropUnusedKept();
  std::optional<HostAllocation> part = image->Only(std::vector<ByteRange>{{0, kMiB}});
  image.reset();
  EXPECT_EQ(pool->stats().used_bytes, 4 * kMiB) << "a part of one segment is still read";
  part.reset();
  EXPECT_EQ(pool->stats().used_bytes, 0u);
  const HostAllocation all = MustAllocate(*pool, 12 * kMiB);
  for (const HostSpan& span : all.Spans(0, 12 * kMiB)) std::ranges::fill(span, std::byte{1});
}

TEST(KeptSegments, KeptSegments_StayForNextPoolAfterStopReplacing) {
  PoolOfBefore before = MakePoolOfBefore();
  HostPool::Kept kept;
  kept.segments = std::move(before.kept);
  kept.on_replaced = [](const PoolSegment&, const std::string&, const std::string&) { ADD_FAILURE(); };
  const auto pool = *HostPool::Create(SmallSegments(3), std::move(kept));
  const auto image = pool->Adopt(6 * kMiB, before.extents);
  ASSERT_TRUE(image.ok()) << image.status();
  pool->StopReplacing();
}

TEST(KeptSegments, KeptSegmentsOfOtherSizeOrUnsealed_AreDropped) {
  PoolOfBefore before = MakePoolOfBefore();
  HostPool::Options options = SmallSegments(3);
  HostPool::Kept kept;
  options.segment_bytes = 6 * kMiB;
  kept.segments = std::move(before.kept);
  UniqueFd unsealed(memfd_create("unsealed", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed.get(), 6 * kMiB), 0);
  kept.segments.push_back({"unsealed", std::move(unsealed)});
  const auto pool = *HostPool::Create(options, std::move(kept));
  EXPECT_TRUE(absl::IsInvalidArgument(pool->Adopt(6 * kMiB, before.extents).status()));
  EXPECT_EQ(pool->stats().used_bytes, 0u);
}

TEST(KeptSegments, KeptSegmentWithoutDescriptor_TakesRoomButNoMemory) {
  HostPool::Options options = SmallSegments(3);
  HostPool::Kept kept;
  options.prefault_threads = 1;
  kept.segments.push_back({"elsewhere", UniqueFd()});
  const auto pool = *HostPool::Create(options, std::move(kept));
  pool->WaitPrefaulted();
  ASSERT_EQ(pool->segment_name(0), "elsewhere");
  const std::vector<NamedExtent> all = {{0, "elsewhere", 0, 4 * kMiB}};
  std::optional<HostAllocation> elsewhere = *pool->Adopt(4 * kMiB, all);
  pool->DropUnusedKept();
  EXPECT_EQ(pool->stats().used_bytes, 4 * kMiB);
  struct stat file{};
  ASSERT_EQ(fstat(pool->segments()[0].fd, &file), 0);
  EXPECT_EQ(file.st_blocks, 0);
  elsewhere.reset();
  EXPECT_EQ(pool->stats().used_bytes, 0u);
  const HostAllocation here = MustAllocate(*pool, 12 * kMiB);
  for (const HostSpan& span : here.Spans(0, 12 * kMiB)) std::ranges::fill(span, std::byte{1});
}

TEST(KeptSegments, Adopt_RefusesInvalidExtentTable) {
  PoolOfBefore before = MakePoolOfBefore();
  HostPool::Kept kept;
  kept.segments = std::move(before.kept);
  const auto pool = *HostPool::Create(SmallSegments(3), std::move(kept));
  const std::string name = before.extents[0].segment;
  using Table = std::vector<NamedExtent>;
  for (const Table& table :
       {Table{{0, "another", 0, 2 * kMiB}}, Table{{0, name, 4 * kMiB, 2 * kMiB}},
        Table{{0, name, ~uint64_t{0} - kMiB + 1, 2 * kMiB}}, Table{{0, name, 0, ~uint64_t{0}}},
        Table{{2 * kMiB, name, 0, 2 * kMiB}}, Table{{0, name, kMiB, 2 * kMiB}}, Table{}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(pool->Adopt(2 * kMiB, table).status()));
  }
}
TEST(HostPool, FiveThousandSmallImages_TakeAtMostAHundredMebibytes) {
  const auto pool = MakePool(128 * kMiB);
  std::vector<HostAllocation> adapters;
  for (int i = 0; i < 5000; ++i) {
    adapters.push_back(MustAllocate(*pool, 4096 + 512));
    std::memset(adapters.back().Spans(0, 4096 + 512).front().data(), i % 251, 4096 + 512);
  }
  EXPECT_LE(pool->stats().used_bytes, 100 * kMiB);
  for (int i = 0; i < 5000; ++i) {
    const HostSpan bytes = adapters[i].Spans(0, 4096 + 512).front();
    EXPECT_EQ(std::ranges::count(bytes, static_cast<std::byte>(i % 251)), 4096 + 512) << i;
  }
  adapters.clear();
  EXPECT_EQ(pool->stats().used_bytes, 0u);
  EXPECT_EQ(pool->stats().small_free_bytes, 0u);
}

TEST(HostPool, SmallImage_IsSharedAndGrownInItsPages) {
  const auto pool = MakePool(8 * kMiB);
  const HostAllocation neighbour = MustAllocate(*pool, 100);
  HostAllocation image = MustAllocate(*pool, 5000);
  const ByteRange part{1000, 10};
  EXPECT_EQ(image.MissingBytes({&part, 1}), 0u);
  HostAllocation cut = image.Only({&part, 1});
  absl::StatusOr<HostAllocation> grown = pool->Grow(cut, {&part, 1});
  ASSERT_TRUE(grown.ok()) << grown.status();
  EXPECT_EQ(grown->extents(), image.extents());
  image = {};
  cut = {};
  EXPECT_TRUE(grown->Covers(0, 5000));
  EXPECT_EQ(pool->stats().used_bytes, kGranuleBytes);
  *grown = {};
  EXPECT_EQ(pool->stats().small_free_bytes, kGranuleBytes - 4096);
}

}  // namespace
}  // namespace tensorcast::host_pool_test
