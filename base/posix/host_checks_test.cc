#include "base/posix/host_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/posix/state_files.h"
#include "base/testing/temp_folder.h"

namespace tensorcast::host_checks_test {
namespace {

using ::testing::HasSubstr;

std::string Refusal(const std::string& folder) {
  Findings findings;
  CheckPrivatePlace("key", folder, "own", findings);
  return std::string(findings.ToStatus().message());
}

// The default folder of a user other than root: the folder of root is fixed.
class DefaultFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    ASSERT_EQ(chmod(home_.path().c_str(), 0755), 0);
    ASSERT_EQ(mkdir(folder_.c_str(), 0755), 0);
    ASSERT_EQ(chown(folder_.c_str(), kUser, kUser), 0);
    ASSERT_EQ(setenv("XDG_STATE_HOME", home_.path().c_str(), 1), 0);
    // The bare system call: of this thread alone.
    ASSERT_EQ(syscall(SYS_setresuid, -1, kUser, -1), 0);
    ASSERT_EQ(DefaultStateFolder(), folder_);
  }
  void TearDown() override {
    if (IsSkipped()) return;
    EXPECT_EQ(syscall(SYS_setresuid, -1, 0, -1), 0);
    unsetenv("XDG_STATE_HOME");
  }

  static constexpr uid_t kUser = 65534;
  const testing::TempFolder home_;
  const std::string folder_ = home_.path() + "/tensorcast";
};

TEST_F(DefaultFolder, CheckPrivatePlace_RefusesDefaultThatOthersMayWrite) {
  // An empty folder would be made private by a start.
  ASSERT_EQ(mkdir((folder_ + "/of another program").c_str(), 0755), 0);
  EXPECT_EQ(Refusal(folder_), "");
  ASSERT_EQ(chmod(folder_.c_str(), 0777), 0);
  EXPECT_THAT(Refusal(folder_), HasSubstr("other users may write to the folder"));
}

TEST_F(DefaultFolder, CheckPrivatePlace_AcceptsMissingDefault) {
  ASSERT_EQ(setenv("XDG_STATE_HOME", (folder_ + "/no/such").c_str(), 1), 0);
  EXPECT_EQ(Refusal(DefaultStateFolder()), "");
}

}  // namespace
}  // namespace tensorcast::host_checks_test
