#include "core/memory/host_limits.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"

namespace tensorcast {
namespace {

constexpr HostLimits kLimits{.physical_bytes = 1000, .available_bytes = 600, .file_bytes = 800};

TEST(HostLimits, AreReadFromThisHost) {
  const HostLimits limits = ReadHostLimits();
  EXPECT_GT(limits.physical_bytes, 0u);
  EXPECT_GT(limits.available_bytes, 0u);
  EXPECT_LE(limits.available_bytes, limits.physical_bytes);
}

TEST(HostLimits, APoolUpToEveryLimitFits) {
  EXPECT_TRUE(CheckFits(600, /*prefaulted=*/true, kLimits).ok());
  EXPECT_TRUE(CheckFits(800, /*prefaulted=*/false, kLimits).ok());
}

TEST(HostLimits, MoreThanTheHostHasNeverFits) {
  const absl::Status status = CheckFits(1001, /*prefaulted=*/false, kLimits);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(status.message(), "1001")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "1000 bytes of memory")) << status;
}

// Without the check ftruncate would raise SIGXFSZ, which ends the process.
TEST(HostLimits, TheFileSizeLimitIsNamed) {
  const absl::Status status = CheckFits(801, /*prefaulted=*/false, kLimits);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(status.message(), "ulimit -f")) << status;
}

TEST(HostLimits, MoreThanIsAvailableFitsOnlyAPoolThatIsNotPrefaulted) {
  EXPECT_TRUE(CheckFits(601, /*prefaulted=*/false, kLimits).ok());
  const absl::Status status = CheckFits(601, /*prefaulted=*/true, kLimits);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(status.message(), "only 600 of 1000")) << status;
}

}  // namespace
}  // namespace tensorcast
