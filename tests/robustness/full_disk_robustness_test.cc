// A file system with too little room, a real one.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
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

TEST_F(FullDisk, FullDisk_DurablePutFailsCleanlyUntilThereIsRoom) {
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

// Its own packed files first, down to the smallest that goes in, then whatever else.
class FullStateFolder : public FullDisk {
 protected:
  void FillWithPackedFiles() {
    int packed = 0;
    for (uint64_t bytes = uint64_t{16} << 20; bytes >= uint64_t{64} << 10;) {
      const std::string name = absl::StrCat("model-", packed);
      const auto put =
          Import(0, name, MakeModel(name + ".safetensors", bytes, 1, packed + 1), /*durable=*/true);
      if (put.ok()) {
        ++packed;
        continue;
      }
      ASSERT_EQ(put.status().code(), absl::StatusCode::kResourceExhausted) << put.status();
      std::filesystem::remove(directory_->path() + "/" + name + ".safetensors");
      bytes /= 2;
    }
    ASSERT_GE(packed, 2);
  }
  void FillWithOtherFiles() {
    std::ofstream file(disk_ + "/others", std::ios::binary | std::ios::app);
    const std::string block(4096, 'x');
    while (file.write(block.data(), static_cast<std::streamsize>(block.size())).flush()) {
    }
    ASSERT_EQ(std::filesystem::space(disk_).available, 0u);
  }
  void KillAndRestartDaemon() {
    TC_ASSERT_OK(cluster_->daemon(0).Signal(SIGKILL));
    TC_ASSERT_OK(cluster_->daemon(0).Wait(Soon()).status());
    TC_ASSERT_OK(cluster_->RestartDaemon(0));
    Reconnect(0);
  }
  // The daemon starts again, twice, and serves what is packed.
  void ExpectRestarts() {
    for (int round = 0; round < 2; ++round) {
      ASSERT_NO_FATAL_FAILURE(KillAndRestartDaemon()) << "round " << round;
      TC_ASSERT_OK(client(0).Get(Context(), "model-0", {}).status());
    }
  }
};

TEST_F(FullStateFolder, FullStateFolder_DaemonRestarts) {
  ASSERT_NO_FATAL_FAILURE(MountDisk("64m"));
  if (IsSkipped()) return;
  ClusterOptions options = FastOptions();
  options.daemons = 1;
  options.daemon_settings.push_back("daemon.state_dir=" + disk_ + "/state");
  StartRobustCluster(options);
  ASSERT_NO_FATAL_FAILURE(FillWithPackedFiles());
  EXPECT_GT(std::filesystem::space(disk_).available, 1u << 20) << "packed files leave something free";
  ASSERT_NO_FATAL_FAILURE(ExpectRestarts());
  ASSERT_NO_FATAL_FAILURE(FillWithOtherFiles());
  ASSERT_NO_FATAL_FAILURE(ExpectRestarts());
}

TEST_F(FullStateFolder, FullStateFolder_DaemonWithoutGlobalStoreRestarts) {
  ASSERT_NO_FATAL_FAILURE(MountDisk("64m"));
  if (IsSkipped()) return;
  ClusterOptions options = FastOptions();
  options.daemons = 1;
  options.global_store = false;
  options.daemon_settings.push_back("daemon.state_dir=" + disk_ + "/state");
  StartRobustCluster(options);
  ASSERT_NO_FATAL_FAILURE(FillWithPackedFiles());
  ASSERT_NO_FATAL_FAILURE(FillWithOtherFiles());
  ASSERT_NO_FATAL_FAILURE(ExpectRestarts());
}

TEST_F(FullStateFolder, FullStateFolder_GlobalStoreRestarts) {
  ASSERT_NO_FATAL_FAILURE(MountDisk("2m"));
  if (IsSkipped()) return;
  ClusterOptions options = FastOptions();
  options.daemons = 1;
  options.global_store_settings.push_back("global_store.metadata_path=" + disk_ + "/metadata.db");
  StartRobustCluster(options);
  TC_ASSERT_OK(Import(0, "m", MakeModel("model.safetensors", 4 << 20)).status());
  // Ended in order, it leaves neither log nor index, and has to make both again.
  for (const int how : {SIGKILL, SIGTERM}) {
    TC_ASSERT_OK(cluster_->global_store().Signal(how));
    TC_ASSERT_OK(cluster_->global_store().Wait(Soon()).status());
    ASSERT_NO_FATAL_FAILURE(FillWithOtherFiles());
    TC_ASSERT_OK(cluster_->RestartGlobalStore());
    TC_ASSERT_OK(invariants().AwaitWhole(Soon()));
    TC_ASSERT_OK(invariants().CheckAcknowledged(Soon()));
  }
}

TEST_F(FullDisk, FullDisk_NonDurablePutSucceeds) {
  ASSERT_NO_FATAL_FAILURE(MountDisk("1m"));
  if (IsSkipped()) return;
  ClusterOptions options = FastOptions();
  options.daemons = 1;
  options.daemon_settings.push_back("daemon.disk_dir=" + disk_);
  StartRobustCluster(options);
  TC_ASSERT_OK(Import(0, "m", MakeModel("model.safetensors", 20 << 20)).status());
  TC_ASSERT_OK(invariants().VerifyReplicas(Soon()));
}

TEST_F(FullDisk, FullDisk_GetToFileFailsAndLeavesNoFile) {
  ASSERT_NO_FATAL_FAILURE(MountDisk("8m"));
  if (IsSkipped()) return;
  ClusterOptions options = FastOptions();
  options.daemons = 1;
  StartRobustCluster(options);
  TC_ASSERT_OK(Import(0, "m", MakeModel("model.safetensors", 20 << 20)).status());
  const std::string out = disk_ + "/copy.safetensors";
  const std::vector<std::string> get = {"get", "m",        "--out",
                                        out,   "--daemon", cluster_->addresses(0).unix_socket};
  const CommandResult refused = RunCommand(get);
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.output, testing::HasSubstr(out));
  EXPECT_EQ(FilesOnDisk(), 0);
  ASSERT_EQ(mount("tmpfs", disk_.c_str(), "tmpfs", MS_REMOUNT, "size=100m"), 0);
  const CommandResult written = RunCommand(get);
  EXPECT_EQ(written.exit_code, 0) << written.output;
  TC_ASSERT_OK(invariants().CheckAcknowledged(Soon()));
}

TEST_F(FullDisk, TraceFileNotWritable_WorkContinues) {
  ASSERT_NO_FATAL_FAILURE(MountDisk("16k"));
  if (IsSkipped()) return;
  ClusterOptions options = FastOptions();
  options.daemons = 1;
  options.daemon_settings.push_back("observability.trace_file=" + disk_ + "/trace.json");
  StartRobustCluster(options);
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model));
  for (int round = 0; round < 50; ++round) {
    TC_ASSERT_OK(DropReplicas(0, put.artifact_id));
    TC_ASSERT_OK(client(0).Get(Context(), "m", {}).status());
  }
  TC_ASSERT_OK(invariants().VerifyReplicas(Soon()));
  EXPECT_EQ(cluster_->daemon(0).Stop(absl::Seconds(20)).value_or(-1), 0);
}

TEST_F(FullDisk, MetadataStoreWithoutRoom_AcknowledgesNothingUntilThereIs) {
  ASSERT_NO_FATAL_FAILURE(MountDisk("512k"));
  if (IsSkipped()) return;
  ClusterOptions options = FastOptions();
  options.daemons = 1;
  options.global_store_settings.push_back("global_store.metadata_path=" + disk_ + "/metadata.db");
  StartRobustCluster(options);
  const std::string model = MakeModel("model.safetensors", 4 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model));
  // Keys until the disk has no space for one more.
  absl::Status bound;
  int keys = 0;
  for (; bound.ok() && keys < 10'000; ++keys) {
    bound =
        client(0).BindKey(Context(absl::Seconds(5)), absl::StrCat("key/", keys), put.artifact_id, 0).status();
  }
  EXPECT_FALSE(bound.ok()) << "the disk was never full";
  const std::string refused = absl::StrCat("key/", keys - 1);
  EXPECT_EQ(client(0).ResolveKey(Context(), refused).status().code(), absl::StatusCode::kNotFound);
  TC_ASSERT_OK(invariants().CheckAcknowledged(Soon()));
  ASSERT_EQ(mount("tmpfs", disk_.c_str(), "tmpfs", MS_REMOUNT, "size=20m"), 0);
  TC_ASSERT_OK(client(0).BindKey(Context(), refused, put.artifact_id, 0).status());
  TC_ASSERT_OK(cluster_->global_store().Signal(SIGKILL));
  TC_ASSERT_OK(cluster_->global_store().Wait(Soon()).status());
  TC_ASSERT_OK(cluster_->RestartGlobalStore());
  TC_ASSERT_OK(invariants().AwaitWhole(Soon()));
  for (int key = 0; key < keys; ++key) {
    TC_ASSERT_OK(client(0).ResolveKey(Context(), absl::StrCat("key/", key)).status());
  }
}

}  // namespace
}  // namespace tensorcast
