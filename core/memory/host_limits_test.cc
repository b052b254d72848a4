#include "core/memory/host_limits.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "core/memory/host_pool.h"

namespace tensorcast::host_limits_test {
namespace {

constexpr HostLimits kLimits{.physical_bytes = 1000, .available_bytes = 600, .file_bytes = 800};

TEST(HostLimits, ReadHostLimits_ReturnsPlausibleValues) {
  const HostLimits limits = ReadHostLimits();
  EXPECT_GT(limits.physical_bytes, 0u);
  EXPECT_GT(limits.available_bytes, 0u);
  EXPECT_LE(limits.available_bytes, limits.physical_bytes);
}

TEST(HostLimits, CheckFits_AcceptsPoolUpToEveryLimit) {
  EXPECT_TRUE(CheckFits(600, kSegmentBytes, /*prefaulted=*/true, kLimits).ok());
  EXPECT_TRUE(CheckFits(800, kSegmentBytes, /*prefaulted=*/false, kLimits).ok());
}

TEST(HostLimits, PoolLargerThanHostMemory_DoesNotFit) {
  const absl::Status status = CheckFits(1001, kSegmentBytes, /*prefaulted=*/false, kLimits);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(status.message(), "1001")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "1000 bytes of memory")) << status;
}

// Without the check ftruncate would raise SIGXFSZ, which ends the process.
TEST(HostLimits, PoolLargerThanFileSizeLimit_IsRefusedWithItsName) {
  const absl::Status status = CheckFits(801, kSegmentBytes, /*prefaulted=*/false, kLimits);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(status.message(), "ulimit -f")) << status;
}

TEST(HostLimits, FileSizeLimit_AppliesToEachSegment) {
  constexpr HostLimits limits{
      .physical_bytes = 8 * kSegmentBytes, .available_bytes = 8 * kSegmentBytes, .file_bytes = kSegmentBytes};
  EXPECT_TRUE(CheckFits(8 * kSegmentBytes, kSegmentBytes, /*prefaulted=*/false, limits).ok());
  EXPECT_FALSE(CheckFits(8 * kSegmentBytes, 2 * kSegmentBytes, /*prefaulted=*/false, limits).ok());
}

TEST(HostLimits, PoolLargerThanAvailableMemory_FitsOnlyUnprefaulted) {
  EXPECT_TRUE(CheckFits(601, kSegmentBytes, /*prefaulted=*/false, kLimits).ok());
  const absl::Status status = CheckFits(601, kSegmentBytes, /*prefaulted=*/true, kLimits);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(status.message(), "only 600 of 1000")) << status;
}

}  // namespace
}  // namespace tensorcast::host_limits_test
