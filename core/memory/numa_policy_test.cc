#include "core/memory/numa_policy.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/posix/unique_fd.h"
#include "core/memory/host_pool.h"
#include "core/memory/huge_pages.h"
#include "core/memory/reserved_range.h"

namespace tensorcast::numa_policy_test {
namespace {

constexpr int kAbsent = 1000;  // a node that no host has
constexpr uint64_t kBytes = 4 * kHugePageBytes;

class NumaPolicy : public ::testing::Test {
 protected:
  NumaPolicy() : fd_(memfd_create("numa_policy_test", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(fd_.get(), kBytes), 0);
    auto reserved = ReservedRange::Reserve(2 * kBytes, "a test");
    EXPECT_TRUE(reserved.ok() && reserved->Map(0, fd_.get(), 0, kBytes, ReservedRange::Access::kWrite).ok());
    if (reserved.ok()) range_ = *std::move(reserved);
  }
  void SetUp() override {
    PreferNumaNode(base() + kHugePageBytes, kHugePageBytes, 0);
    if (PreferredNumaNode(base() + kHugePageBytes) != 0) GTEST_SKIP() << "this process may place no memory";
  }
  std::byte* base() const { return range_.base(); }

  const UniqueFd fd_;
  ReservedRange range_;
};

TEST_F(NumaPolicy, PreferNumaNode_AppliesOnlyToItsRange) {
  EXPECT_EQ(PreferredNumaNode(base()), std::nullopt);
  EXPECT_EQ(PreferredNumaNode(base() + 2 * kHugePageBytes - 1), 0);
  EXPECT_EQ(PreferredNumaNode(base() + 2 * kHugePageBytes), std::nullopt);
}

TEST_F(NumaPolicy, NumaPreference_AppliesToEveryMappingOfTheMemory) {
  ASSERT_TRUE(range_.Map(kBytes, fd_.get(), 0, kBytes, ReservedRange::Access::kRead).ok());
  EXPECT_EQ(PreferredNumaNode(base() + kBytes + kHugePageBytes), 0);
  EXPECT_EQ(PreferredNumaNode(base() + kBytes), std::nullopt);
}

TEST_F(NumaPolicy, PreferAbsentNumaNode_ChangesNothing) {
  for (const int node : {-1, kAbsent, 1 << 20}) PreferNumaNode(base(), kHugePageBytes, node);
  EXPECT_EQ(PreferredNumaNode(base()), std::nullopt);
  base()[0] = std::byte{1};
}

// Segments near node 0, and such as the kernel likes, in turn.
std::unique_ptr<HostPool> Pool() {
  auto pool = HostPool::Create({.bytes = 8 * kGranuleBytes,
                                .segment_bytes = 2 * kGranuleBytes,
                                .use_huge_pages = false,
                                .prefault_threads = 0,
                                .numa_nodes = {kAbsent, 0}});
  EXPECT_TRUE(pool.ok()) << pool.status();
  return *std::move(pool);
}

size_t SegmentOf(const HostAllocation& allocation) {
  EXPECT_EQ(allocation.extents().size(), 1u);
  return allocation.extents().front().extent.offset / (2 * kGranuleBytes);
}

TEST_F(NumaPolicy, PoolSegments_AlternateBetweenNumaNodes) {
  const auto pool = Pool();
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(PreferredNumaNode(pool->base() + pool->segments()[i].offset),
              i % 2 == 1 ? std::optional<int>(0) : std::nullopt);
  }
}

TEST_F(NumaPolicy, AllocateNear_PrefersSegmentsOfNodeWhileTheyHaveRoom) {
  const auto pool = Pool();
  std::vector<HostAllocation> held;
  for (const size_t segment : {1, 1, 3, 3}) {
    held.push_back(*pool->AllocateNear(kGranuleBytes, 0));
    EXPECT_EQ(SegmentOf(held.back()), segment);
  }
  held.push_back(*pool->AllocateNear(2 * kGranuleBytes, 0));
  EXPECT_EQ(SegmentOf(held.back()) % 2, 0u) << "elsewhere rather than not at all";
  held.push_back(*pool->AllocateNear(2 * kGranuleBytes, 0));
  EXPECT_EQ(pool->AllocateNear(1, 0).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool->stats().high_water_bytes, pool->bytes());
  held.clear();
  EXPECT_EQ(pool->stats().used_bytes, 0u);
  EXPECT_TRUE(pool->AllocateNear(0, 0).ok());
}

}  // namespace
}  // namespace tensorcast::numa_policy_test
