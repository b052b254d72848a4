// A file system with too little room, a real one.
#include <gmock/gmock.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "tests/robustness/robustness_test_base.h"

namespace tensorcast {
namespace {

class FullDisk : public RobustnessTest {
 protected:
  // Skips where mounting is not allowed.
  void MountDisk(const char* size) {
    disk_ = directory_->path() + "/disk";
    std::filesystem::create_directories(disk_);
    const std::string options = std::string("size=") + size;
    if (mount("tmpfs", disk_.c_str(), "tmpfs", 0, options.c_str()) != 0) {
      const std::string reason = std::strerror(errno);
      disk_.clear();
      GTEST_SKIP() << "a small file system cannot be mounted here (" << reason << "); this test needs root";
    }
  }
  void TearDown() override {
    RobustnessTest::TearDown();
    if (!disk_.empty()) umount2(disk_.c_str(), MNT_DETACH);
  }

  int FilesOnDisk() const {
    int files = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(disk_)) {
      if (entry.is_regular_file()) ++files;
    }
    return files;
  }

  std::string disk_;
};

TEST_F(FullDisk, ADurablePutFailsClearlyLeavesNothingAndWorksOnceThereIsRoom) {
  ASSERT_NO_FATAL_FAILURE(MountDisk("32m"));
  if (IsSkipped()) return;
  ClusterOptions options = FastOptions();
  options.daemons = 1;
  options.daemon_settings.push_back("daemon.disk_dir=" + disk_);
  StartRobustCluster(options);
  const std::string model = MakeModel("model.safetensors", 60 << 20);
  TC_ASSERT_OK(invariants().RecordBaseline(Soon()));
  const int files_before = FilesOnDisk();

  const auto refused = Import(0, "m", model, /*durable=*/true);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), testing::HasSubstr(disk_));
  EXPECT_EQ(client(0).ResolveKey(Context(), "m").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(FilesOnDisk(), files_before);
  TC_ASSERT_OK(invariants().AwaitBaseline(Soon()));

  ASSERT_EQ(mount("tmpfs", disk_.c_str(), "tmpfs", MS_REMOUNT, "size=200m"), 0);
  TC_ASSERT_OK(Import(0, "m", model, /*durable=*/true).status());
  TC_ASSERT_OK(invariants().CheckAcknowledged(Soon()));
  TC_ASSERT_OK(invariants().VerifyReplicas(Soon()));
}

TEST_F(FullDisk, APutThatIsNotDurableDoesNotNeedTheDisk) {
  ASSERT_NO_FATAL_FAILURE(MountDisk("1m"));
  if (IsSkipped()) return;
  ClusterOptions options = FastOptions();
  options.daemons = 1;
  options.daemon_settings.push_back("daemon.disk_dir=" + disk_);
  StartRobustCluster(options);
  TC_ASSERT_OK(Import(0, "m", MakeModel("model.safetensors", 20 << 20)).status());
  TC_ASSERT_OK(invariants().VerifyReplicas(Soon()));
}

}  // namespace
}  // namespace tensorcast
