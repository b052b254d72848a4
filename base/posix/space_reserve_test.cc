#include "base/posix/space_reserve.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"

namespace tensorcast {
namespace {

TEST(SpaceReserve, TakesRoomUntilItIsReleased) {
  const std::string path =
      (std::filesystem::path(::testing::TempDir()) / absl::StrCat("reserve-", getpid())).string();
  ReserveSpace(path, 256 << 10);
  struct stat info{};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_GE(info.st_blocks * 512, 256 << 10) << "a sparse file reserves nothing";
  ReserveSpace(path, 256 << 10);  // again does no harm
  ReleaseSpace(path);
  EXPECT_FALSE(std::filesystem::exists(path));
  ReleaseSpace(path);
}

TEST(SpaceReserve, LeavesNothingWhereThereIsNoFolder) {
  ReserveSpace("/nowhere/at/all/reserve", 4096);
  EXPECT_FALSE(std::filesystem::exists("/nowhere"));
}

}  // namespace
}  // namespace tensorcast
