#include "base/posix/socket_folders.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/posix/state_files.h"
#include "base/testing/temp_folder.h"

namespace tensorcast::socket_folders_test {
namespace {

using ::testing::ElementsAre;

constexpr uid_t kUser = 65534;

// A user other than root, with a home and a runtime folder.
class SocketFoldersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(mkdir(Runtime().c_str(), 0755), 0);
    setenv("XDG_RUNTIME_DIR", Runtime().c_str(), 1);
    setenv("XDG_STATE_HOME", folder_.File("state").c_str(), 1);
    if (geteuid() != 0) return;
    ASSERT_EQ(chown(Runtime().c_str(), kUser, kUser), 0);
    ASSERT_EQ(chmod(folder_.path().c_str(), 0755), 0);
    // The bare system call: of this thread alone.
    ASSERT_EQ(syscall(SYS_setresuid, -1, kUser, -1), 0);
    became_user_ = true;
  }
  void TearDown() override {
    BecomeRoot();
    unsetenv("XDG_RUNTIME_DIR");
    unsetenv("XDG_STATE_HOME");
  }
  void BecomeRoot() {
    if (became_user_) {
      ASSERT_EQ(syscall(SYS_setresuid, -1, 0, -1), 0);
    }
    became_user_ = false;
  }

  std::string Runtime() const { return folder_.File("run"); }
  std::string State() const { return folder_.File("state/tensorcast"); }

  const testing::TempFolder folder_;
  bool became_user_ = false;
};

TEST_F(SocketFoldersTest, User_HasRuntimeThenStateThenSystemFolder) {
  EXPECT_THAT(SocketFolders(), ElementsAre(Runtime() + "/tensorcast", State(), "/run/tensorcast"));
  EXPECT_EQ(DefaultSocketFolder(), Runtime() + "/tensorcast");
}

TEST_F(SocketFoldersTest, UserWithoutRuntimeFolder_HasStateFolder) {
  for (const char* runtime : {"", "run", "/nowhere/at/all"}) {
    setenv("XDG_RUNTIME_DIR", runtime, 1);
    EXPECT_THAT(SocketFolders(), ElementsAre(State(), "/run/tensorcast")) << runtime;
    EXPECT_EQ(DefaultSocketFolder(), State()) << runtime;
  }
}

TEST_F(SocketFoldersTest, RuntimeFolderOfAnotherUser_IsNotUsed) {
  setenv("XDG_RUNTIME_DIR", "/proc", 1);  // root's
  EXPECT_EQ(DefaultSocketFolder(), State());
}

TEST_F(SocketFoldersTest, Root_HasTheSystemFolderAlone) {
  BecomeRoot();
  if (geteuid() != 0) GTEST_SKIP() << "this test needs root";
  EXPECT_THAT(SocketFolders(), ElementsAre("/run/tensorcast"));
}

TEST_F(SocketFoldersTest, StateFolderOfItsOwn_HoldsTheSockets) {
  EXPECT_EQ(SocketFolderOf("/srv/tc/a"), "/srv/tc/a");
  EXPECT_EQ(SocketFolderOf(DefaultStateFolder()), Runtime() + "/tensorcast");
}

}  // namespace
}  // namespace tensorcast::socket_folders_test
