#include "core/memory/reserved_range.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "base/posix/unique_fd.h"
#include "core/memory/host_limits.h"

namespace tensorcast::reserved_range_test {
namespace {

constexpr uint64_t kHuge = uint64_t{2} << 20;

// Asked of the kernel, which reads for us and says so instead of dying.
bool CanRead(const std::byte* at) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  const UniqueFd out(ends[0]);
  const UniqueFd in(ends[1]);
  return write(in.get(), at, 1) == 1;
}

TEST(ReservedRange, ReservedRange_MapsPiecesAndLeavesHolesUnreadable) {
  const UniqueFd file(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), 2 * kHuge), 0);
  auto range = ReservedRange::Reserve(3 * kHuge, "a test");
  ASSERT_TRUE(range.ok()) << range.status();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(range->base()) % kHuge, 0u);
  ASSERT_TRUE(range->Map(0, file.get(), kHuge, kHuge, ReservedRange::Access::kWrite).ok());
  ASSERT_TRUE(range->Map(2 * kHuge, file.get(), kHuge, kHuge, ReservedRange::Access::kRead).ok());
  std::memset(range->base(), 7, kHuge);
  EXPECT_EQ(range->base()[2 * kHuge], std::byte{7}) << "both are the same bytes of the file";
  EXPECT_TRUE(CanRead(range->base() + 2 * kHuge));
  EXPECT_FALSE(CanRead(range->base() + kHuge));
}

TEST(ReservedRange, MovedReservedRange_UnmapsAllOnDestruction) {
  const UniqueFd file(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), kHuge), 0);
  std::byte* base = nullptr;
  {
    auto made = ReservedRange::Reserve(kHuge, "a test");
    ASSERT_TRUE(made.ok()) << made.status();
    ReservedRange range = *std::move(made);
    base = range.base();
    ASSERT_TRUE(range.Map(0, file.get(), 0, kHuge, ReservedRange::Access::kRead).ok());
    EXPECT_EQ(made->base(), nullptr);
    EXPECT_TRUE(CanRead(base));
  }
  EXPECT_FALSE(CanRead(base));
}

TEST(ReservedRange, HugePageThatEndsBehindRange_IsNotMapped) {
  const UniqueFd file(memfd_create("test", MFD_CLOEXEC | MFD_HUGETLB));
  if (!file) GTEST_SKIP() << "this kernel has no huge pages that are set aside";
  ASSERT_EQ(ftruncate(file.get(), 3 * kHuge), 0);
  const uint64_t bytes = 2 * kHuge + 4096;
  EXPECT_EQ(ReservedRange::MappedBytes(file.get(), bytes), 3 * kHuge);
  auto range = ReservedRange::Reserve(bytes, "a test");
  ASSERT_TRUE(range.ok());
  const absl::Status refused = range->Map(0, file.get(), 0, bytes, ReservedRange::Access::kRead);
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
}

TEST(ReservedRange, CopyOnWriteMapping_NeedsFreeHugePages) {
  const uint64_t free = FreeHugePageBytes();
  if (free < 2 * kHuge) GTEST_SKIP() << "this host has no two huge pages set aside and free";
  // All but one, so that there is one for a write.
  const uint64_t bytes = free - kHuge;
  const UniqueFd file(memfd_create("test", MFD_CLOEXEC | MFD_HUGETLB));
  ASSERT_EQ(ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
  auto pool = ReservedRange::Reserve(bytes, "a test");
  ASSERT_TRUE(pool.ok() && pool->Map(0, file.get(), 0, bytes, ReservedRange::Access::kWrite).ok());
  pool->base()[0] = std::byte{1};

  auto mine = ReservedRange::Reserve(kHuge, "a test");
  auto other = ReservedRange::Reserve(kHuge, "a test");
  ASSERT_TRUE(mine.ok() && other.ok());
  ASSERT_TRUE(mine->Map(0, file.get(), 0, kHuge, ReservedRange::Access::kCopyOnWrite).ok());
  const absl::Status refused = other->Map(0, file.get(), 0, kHuge, ReservedRange::Access::kCopyOnWrite);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  ASSERT_TRUE(other->Map(0, file.get(), 0, kHuge, ReservedRange::Access::kRead).ok());
  mine->base()[0] = std::byte{2};
  EXPECT_EQ(mine->base()[0], std::byte{2});
  EXPECT_EQ(other->base()[0], std::byte{1}) << "no other mapping sees it";
}

TEST(ReservedRange, Reserve_FailsWithNameOfPurpose) {
  EXPECT_EQ(ReservedRange::Reserve(0, "nothing")->base(), nullptr);
  const auto refused = ReservedRange::Reserve(uint64_t{1} << 62, "a test");
  EXPECT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("a test"), std::string::npos) << refused.status();
}

}  // namespace
}  // namespace tensorcast::reserved_range_test
