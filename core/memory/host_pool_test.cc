#include "core/memory/host_pool.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/memory/host_limits.h"

namespace tensorcast {
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
  EXPECT_EQ(fstat(pool.fd(), &info), 0);
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

TEST(HostPool, IsRoundedUpToWholeGranules) {
  const auto pool = MakePool(3 * kMiB);
  EXPECT_EQ(pool->bytes(), 4 * kMiB);
  EXPECT_EQ(pool->stats().capacity_bytes, 4 * kMiB);
}

TEST(HostPool, RefusesASizeThatNoHostHas) {
  for (uint64_t bytes : {std::numeric_limits<uint64_t>::max(), uint64_t{1} << 60}) {
    EXPECT_EQ(HostPool::Create({.bytes = bytes}).status().code(), absl::StatusCode::kResourceExhausted);
  }
}

TEST(HostPool, RefusesAnEmptyPool) {
  EXPECT_EQ(HostPool::Create({.bytes = 0}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(HostPool::Create({.bytes = kMiB, .prefault_threads = -1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(HostPool, TakesHugePagesExactlyWhenTheHostHasEnough) {
  const bool enough = FreeHugePageBytes() >= 4 * kMiB;
  const auto pool = MakePool(4 * kMiB);
  EXPECT_EQ(pool->huge_pages(), enough);
  const auto without = HostPool::Create({.bytes = 4 * kMiB, .use_huge_pages = false});
  ASSERT_TRUE(without.ok());
  EXPECT_FALSE((*without)->huge_pages());
}

TEST(HostPool, ContiguousWherePossible) {
  const auto pool = MakePool(16 * kMiB);
  const HostAllocation allocation = MustAllocate(*pool, 7 * kMiB);
  EXPECT_EQ(allocation.bytes(), 7 * kMiB);
  EXPECT_EQ(allocation.extents(), (std::vector<Extent>{{0, 8 * kMiB}}));
}

TEST(HostPool, AllocationSucceedsWhileEnoughBytesAreFreeHoweverFragmented) {
  const auto pool = MakePool(32 * kMiB);
  std::vector<HostAllocation> granules;
  for (int i = 0; i < 16; ++i) granules.push_back(MustAllocate(*pool, kGranuleBytes));
  for (int i = 0; i < 16; i += 2) granules[i] = {};
  const HostAllocation scattered = MustAllocate(*pool, 8 * kGranuleBytes);
  EXPECT_EQ(scattered.extents().size(), 8u);
  EXPECT_FALSE(pool->Allocate(1).ok());
}

TEST(HostPool, AFullPoolSaysWhatWasWantedAndWhatIsFree) {
  const auto pool = MakePool(8 * kMiB);
  const HostAllocation held = MustAllocate(*pool, 6 * kMiB);
  const absl::Status status = pool->Allocate(3 * kMiB).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("wanted ", 3 * kMiB))) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("free ", 2 * kMiB))) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), absl::StrCat("of ", 8 * kMiB))) << status;
  EXPECT_FALSE(pool->Allocate(std::numeric_limits<uint64_t>::max()).ok());
}

TEST(HostPool, AnEmptyAllocationTakesNothing) {
  const auto pool = MakePool(2 * kMiB);
  const HostAllocation all = MustAllocate(*pool, 2 * kMiB);
  const HostAllocation nothing = MustAllocate(*pool, 0);
  EXPECT_EQ(nothing.bytes(), 0u);
  EXPECT_TRUE(nothing.extents().empty());
  EXPECT_TRUE(nothing.Spans(0, 0).empty());
}

TEST(HostPool, GranulesComeBackWhenTheAllocationGoes) {
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

TEST(HostPool, CountsUseHighWaterAndFailures) {
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

TEST(HostPool, SpansCoverARangeAcrossExtents) {
  const auto pool = MakePool(8 * kMiB);
  HostAllocation hole = MustAllocate(*pool, 2 * kMiB);
  const HostAllocation wall = MustAllocate(*pool, 2 * kMiB);
  HostAllocation tail = MustAllocate(*pool, 4 * kMiB);
  hole = {};
  tail = {};
  const HostAllocation allocation = MustAllocate(*pool, 5 * kMiB);
  ASSERT_EQ(allocation.extents(), (std::vector<Extent>{{0, 2 * kMiB}, {4 * kMiB, 4 * kMiB}}));

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

TEST(HostPoolDeathTest, BrokenPromisesAreCaught) {
  auto pool = MakePool(4 * kMiB);
  const HostAllocation allocation = MustAllocate(*pool, 100);
  EXPECT_DEATH(allocation.Spans(90, 11), "of an allocation of 100");
  EXPECT_DEATH(allocation.Spans(101, std::numeric_limits<uint64_t>::max()), "of an allocation of 100");
  EXPECT_DEATH(pool.reset(), "outlives its pool");
}

class SealedPool : public testing::Test {
 protected:
  SealedPool() : pool_(MakePool(4 * kMiB)) {
    // The strongest thing that somebody who was handed the descriptor could try.
    reopened_ = open(absl::StrCat("/proc/self/fd/", pool_->fd()).c_str(), O_RDWR | O_CLOEXEC);
    EXPECT_GE(reopened_, 0) << strerror(errno);
  }
  ~SealedPool() override { close(reopened_); }

  std::unique_ptr<HostPool> pool_;
  int reopened_ = -1;
};

TEST_F(SealedPool, CanBeMappedForReadingAndShowsWhatThePoolWrites) {
  const HostAllocation allocation = MustAllocate(*pool_, 100);
  const HostSpan bytes = allocation.Spans(0, 100)[0];
  for (int fd : {pool_->fd(), reopened_}) {
    void* mapping = mmap(nullptr, pool_->bytes(), PROT_READ, MAP_SHARED, fd, 0);
    ASSERT_NE(mapping, MAP_FAILED) << strerror(errno);
    std::memset(bytes.data(), 0x5a + fd, bytes.size());
    EXPECT_EQ(
        std::memcmp(static_cast<std::byte*>(mapping) + allocation.extents()[0].offset, bytes.data(), 100), 0);
    munmap(mapping, pool_->bytes());
  }
}

TEST_F(SealedPool, CannotBeMappedForWriting) {
  for (int fd : {pool_->fd(), reopened_}) {
    EXPECT_EQ(mmap(nullptr, pool_->bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    EXPECT_EQ(errno, EPERM);
  }
}

TEST_F(SealedPool, AReadOnlyMappingCannotBeMadeWritable) {
  void* mapping = mmap(nullptr, pool_->bytes(), PROT_READ, MAP_SHARED, reopened_, 0);
  ASSERT_NE(mapping, MAP_FAILED) << strerror(errno);
  EXPECT_NE(mprotect(mapping, pool_->bytes(), PROT_READ | PROT_WRITE), 0);
  EXPECT_EQ(errno, EACCES);
  munmap(mapping, pool_->bytes());
}

TEST_F(SealedPool, CannotBeWrittenPunchedResizedOrUnsealed) {
  EXPECT_LT(pwrite(reopened_, "x", 1, 0), 0);
  EXPECT_NE(fallocate(reopened_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  EXPECT_NE(ftruncate(reopened_, 4096), 0);
  EXPECT_NE(ftruncate(reopened_, static_cast<off_t>(pool_->bytes() + 4096)), 0);
  EXPECT_NE(fcntl(reopened_, F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_EQ(fcntl(pool_->fd(), F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
  EXPECT_NE(fcntl(pool_->fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(HostPoolPrefault, TouchesEveryPageInTheBackground) {
  const auto pool = MakePool(200 * kMiB, /*prefault_threads=*/2);
  pool->WaitPrefaulted();
  EXPECT_TRUE(pool->prefaulted());
  EXPECT_GE(ResidentBytes(*pool), pool->bytes());
}

TEST(HostPoolPrefault, WithoutThreadsPagesAppearAtFirstTouch) {
  const auto pool = HostPool::Create({.bytes = 8 * kMiB, .use_huge_pages = false, .prefault_threads = 0});
  ASSERT_TRUE(pool.ok());
  (*pool)->WaitPrefaulted();
  EXPECT_FALSE((*pool)->prefaulted());
  EXPECT_EQ(ResidentBytes(**pool), 0u);
  (*pool)->base()[5 * kMiB] = std::byte{1};
  EXPECT_GT(ResidentBytes(**pool), 0u);
}

TEST(HostPoolPrefault, ChangesNothingThatIsAlreadyInUse) {
  const auto pool = MakePool(128 * kMiB, /*prefault_threads=*/1);
  const HostAllocation allocation = MustAllocate(*pool, 128 * kMiB);
  const HostSpan bytes = allocation.Spans(0, allocation.bytes())[0];
  for (uint64_t i = 0; i < bytes.size(); i += 4096) bytes[i] = static_cast<std::byte>(i >> 12);
  pool->WaitPrefaulted();
  for (uint64_t i = 0; i < bytes.size(); i += 4096) ASSERT_EQ(bytes[i], static_cast<std::byte>(i >> 12)) << i;
}

TEST(HostPoolPrefault, APoolMayGoWhileItIsBeingPrefaulted) {
  for (int i = 0; i < 5; ++i) MakePool(512 * kMiB, /*prefault_threads=*/3);
}

TEST(HostPoolThreads, NoTwoAllocationsShareAByte) {
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

}  // namespace
}  // namespace tensorcast
