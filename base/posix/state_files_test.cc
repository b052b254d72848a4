#include "base/posix/state_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/testing/temp_folder.h"

namespace tensorcast::state_files_test {
namespace {

using ::testing::HasSubstr;

mode_t ModeOf(const std::string& path) {
  struct stat found{};
  EXPECT_EQ(stat(path.c_str(), &found), 0) << path;
  return found.st_mode & 07777;
}

class PrivateFilesTest : public ::testing::Test {
 protected:
  PrivateFilesTest() : umask_(umask(0)) {}
  ~PrivateFilesTest() override { umask(umask_); }

  std::string Folder(const std::string& name, mode_t mode) {
    const std::string path = root_ + "/" + name;
    EXPECT_EQ(mkdir(path.c_str(), mode), 0);
    return path;
  }
  void Touch(const std::string& path) { std::ofstream(path) << "x"; }

  const testing::TempFolder folder_;
  const std::string& root_ = folder_.path();
  const mode_t umask_;
};

TEST_F(PrivateFilesTest, NewPrivateFolder_HasMode0700) {
  const std::string path = root_ + "/a/b";
  ASSERT_TRUE(MakePrivateFolder(path, "own").ok());
  EXPECT_EQ(ModeOf(path), 0700u);
}

TEST_F(PrivateFilesTest, OpenFolderThatIsEmptyOrOurs_IsClosed) {
  const std::string empty = Folder("empty", 0777);
  ASSERT_TRUE(MakePrivateFolder(empty, "own").ok());
  EXPECT_EQ(ModeOf(empty), 0700u);

  const std::string ours = Folder("ours", 0755);
  Touch(ours + "/own");
  Touch(ours + "/more");
  ASSERT_TRUE(MakePrivateFolder(ours, "own", 0011).ok());
  EXPECT_EQ(ModeOf(ours), 0711u);
  ASSERT_EQ(chmod(ours.c_str(), 0755), 0);
  ASSERT_TRUE(MakePrivateFolder(ours, "own").ok());
  EXPECT_EQ(ModeOf(ours), 0700u);
}

// A global store with its file in the state folder of a daemon with handle_groups.
TEST_F(PrivateFilesTest, PrivateFolder_KeepsExecutePermissionForOthers) {
  const std::string shared = Folder("shared", 0711);
  Touch(shared + "/own");
  ASSERT_TRUE(MakePrivateFolder(shared, "own").ok());
  EXPECT_EQ(ModeOf(shared), 0711u);
  const std::string closed = Folder("closed", 0700);
  Touch(closed + "/own");
  ASSERT_TRUE(MakePrivateFolder(closed, "own", 0011).ok());
  EXPECT_EQ(ModeOf(closed), 0711u);
}

TEST_F(PrivateFilesTest, FolderWithForeignFiles_IsKeptOrRefusedIfWritable) {
  const std::string read = Folder("read", 0755);
  Touch(read + "/theirs");
  ASSERT_TRUE(MakePrivateFolder(read, "own").ok());
  EXPECT_EQ(ModeOf(read), 0755u);

  const std::string write = Folder("write", 01777);
  Touch(write + "/theirs");
  const absl::Status refused = MakePrivateFolder(write, "own");
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(refused.message(), HasSubstr(write));
  EXPECT_EQ(ModeOf(write), 01777u);
}

TEST_F(PrivateFilesTest, CheckPrivateFolder_PredictsResultAndChangesNothing) {
  EXPECT_TRUE(CheckPrivateFolder(root_ + "/absent/folder", "own").ok());
  EXPECT_FALSE(std::filesystem::exists(root_ + "/absent"));

  const std::string open = Folder("open", 0777);
  EXPECT_TRUE(CheckPrivateFolder(open, "own").ok());
  EXPECT_EQ(ModeOf(open), 0777u);

  Touch(open + "/theirs");
  const absl::Status refused = CheckPrivateFolder(open, "own");
  EXPECT_EQ(refused, MakePrivateFolder(open, "own"));
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);

  EXPECT_FALSE(CheckPrivateFolder(open + "/theirs", "own").ok());
}

TEST_F(PrivateFilesTest, FolderOfOtherUser_IsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder to another user";
  const std::string path = Folder("theirs", 0700);
  ASSERT_EQ(chown(path.c_str(), 65534, 65534), 0);
  const absl::Status refused = MakePrivateFolder(path, "own");
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(refused.message(), HasSubstr("belongs to user 65534"));
}

TEST_F(PrivateFilesTest, MakePrivateFile_KeepsContent) {
  const std::string path = root_ + "/file";
  ASSERT_TRUE(MakePrivateFile(path).ok());
  EXPECT_EQ(ModeOf(path), 0600u);
  Touch(path);
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  ASSERT_TRUE(MakePrivateFile(path).ok());
  EXPECT_EQ(ModeOf(path), 0600u);
  EXPECT_EQ(std::filesystem::file_size(path), 1u);
  EXPECT_FALSE(MakePrivateFile(root_).ok());
}

TEST_F(PrivateFilesTest, ReplaceFile_WritesWholeFileWithMode) {
  const std::string path = root_ + "/file";
  ASSERT_TRUE(ReplaceFile(path, "first").ok());
  EXPECT_EQ(ModeOf(path), 0600u);
  Touch(path + ".new");  // what a write that was cut short left
  ASSERT_TRUE(ReplaceFile(path, std::string(100'000, 'x'), 0640).ok());
  EXPECT_EQ(ModeOf(path), 0640u);
  EXPECT_EQ(std::filesystem::file_size(path), 100'000u);
  EXPECT_FALSE(std::filesystem::exists(path + ".new"));
}

TEST_F(PrivateFilesTest, FailedReplaceFile_LeavesNothing) {
  const std::string path = root_ + "/folder/below";
  ASSERT_TRUE(std::filesystem::create_directories(path));
  EXPECT_THAT(ReplaceFile(root_ + "/folder", "text").message(), HasSubstr(root_ + "/folder"));
  EXPECT_FALSE(std::filesystem::exists(root_ + "/folder.new"));
  EXPECT_EQ(ReplaceFile(root_ + "/nowhere/file", "text").code(), absl::StatusCode::kNotFound);
}

TEST(SpaceReserve, SpaceReserve_TakesRoomUntilReleased) {
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

TEST(SpaceReserve, SpaceReserveInMissingFolder_LeavesNothing) {
  ReserveSpace("/nowhere/at/all/reserve", 4096);
  EXPECT_FALSE(std::filesystem::exists("/nowhere"));
}

}  // namespace
}  // namespace tensorcast::state_files_test
