// Disks that fail under real processes: faulty_files.cc, preloaded, makes chosen reads, writes and syncs fail
// or stop.
#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "absl/strings/str_cat.h"
#include "tests/robustness/robustness_test_base.h"

namespace tensorcast {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr uint64_t kModelBytes = 40 << 20;

class FileFaults : public RobustnessTest {
 protected:
  void SetUp() override {
    RobustnessTest::SetUp();
    rules_ = directory_->path() + "/rules";
    environment_ = {{"LD_PRELOAD", TENSORCAST_FAULTY_FILES}, {"FAULTY_FILES", rules_}};
  }

  // A daemon with faulty files, and a global store that may have them, too.
  void StartFaultyCluster(bool faulty_global_store = false) {
    ClusterOptions options = FastOptions();
    options.daemons = 1;
    options.daemon_environments = {environment_};
    if (faulty_global_store) options.global_store_environment = environment_;
    ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
    model_ = MakeModel("model.safetensors", kModelBytes);
    // What a process keeps once it has read a file and packed one is not a leak.
    const std::string other = MakeModel("other.safetensors", 8 << 20, 1, 2);
    TC_ASSERT_OK(Import(0, "other", other, /*durable=*/true).status());
    TC_ASSERT_OK(invariants().RecordBaseline(Soon()));
  }

  // Whole at once: processes read it at any moment.
  void SetFault(const std::string& rule) {
    std::ofstream(rules_ + ".new") << rule << "\n";
    fs::rename(rules_ + ".new", rules_);
  }
  void EndFault() { fs::remove(rules_); }

  std::string PackedFiles() const { return cluster_->daemon_directory(0) + "/artifacts/"; }
  int FilesIn(const std::string& folder) const {
    int files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      files += entry.is_regular_file() ? 1 : 0;
    }
    return files;
  }

  // A put that failed has left nothing; once the fault is over it works, with the right bytes.
  void ExpectNothingIsLeftAndItWorksAgain(bool durable) {
    EXPECT_EQ(client(0).ResolveKey(Context(), "m").status().code(), absl::StatusCode::kNotFound);
    TC_ASSERT_OK(invariants().AwaitBaseline(Soon()));
    EndFault();
    TC_ASSERT_OK(Import(0, "m", model_, durable).status());
    TC_ASSERT_OK(invariants().CheckAcknowledged(Soon()));
    TC_ASSERT_OK(invariants().VerifyReplicas(Soon()));
  }

  std::string rules_;
  std::string model_;
  Environment environment_;
};

TEST_F(FileFaults, ReadErrorDuringImport_NamesFileAndLeavesNothing) {
  ASSERT_NO_FATAL_FAILURE(StartFaultyCluster());
  SetFault(absl::StrCat("read EIO ", kModelBytes / 2, " ", model_));
  const auto put = Import(0, "m", model_);
  EXPECT_EQ(put.status().code(), absl::StatusCode::kDataLoss) << put.status();
  EXPECT_THAT(std::string(put.status().message()), HasSubstr(model_));
  ExpectNothingIsLeftAndItWorksAgain(/*durable=*/false);
}

TEST_F(FileFaults, ReadErrorInHeader_NamesFile) {
  ASSERT_NO_FATAL_FAILURE(StartFaultyCluster());
  SetFault(absl::StrCat("read EIO 0 ", model_));
  const auto put = Import(0, "m", model_);
  EXPECT_FALSE(put.ok());
  EXPECT_THAT(std::string(put.status().message()), HasSubstr(model_));
  ExpectNothingIsLeftAndItWorksAgain(/*durable=*/false);
}

TEST_F(FileFaults, ShortReads_AreContinued) {
  ASSERT_NO_FATAL_FAILURE(StartFaultyCluster());
  SetFault(absl::StrCat("read short 0 ", directory_->path()));
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model_, /*durable=*/true));
  TC_ASSERT_OK(invariants().VerifyReplicas(Soon()));
  TC_ASSERT_OK(DropReplicas(0, put.artifact_id));
  TC_ASSERT_OK(client(0).Get(Context(), "m", {.lane = "disk"}).status());
  TC_ASSERT_OK(invariants().VerifyReplicas(Soon()));
}

TEST_F(FileFaults, FileChangesDuringImport_ImportFailsAndNamesIt) {
  ASSERT_NO_FATAL_FAILURE(StartFaultyCluster());
  SetFault(absl::StrCat("read hold ", kModelBytes / 2, " ", model_));
  auto put = std::async(std::launch::async, [&] { return Import(0, "m", model_); });
  TC_ASSERT_OK(invariants().Await(0, Soon(), [&](const auto&) {
    return fs::exists(rules_ + ".held") ? absl::OkStatus() : absl::InternalError("nothing was read");
  }));
  const std::string unchanged = model_ + ".unchanged";
  fs::copy_file(model_, unchanged);
  {
    std::fstream file(model_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(kModelBytes / 4);  // what was read already
    file.put('x');
  }
  EndFault();
  const auto result = put.get();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition) << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr(model_));
  fs::rename(unchanged, model_);
  ExpectNothingIsLeftAndItWorksAgain(/*durable=*/false);
}

TEST_F(FileFaults, UnreadablePackedFile_ImportedFilesAreUsedInstead) {
  ASSERT_NO_FATAL_FAILURE(StartFaultyCluster());
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model_, /*durable=*/true));
  TC_ASSERT_OK(DropReplicas(0, put.artifact_id));
  SetFault(absl::StrCat("read EIO ", kModelBytes / 2, " ", PackedFiles()));
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(0).Get(Context(), "m", {}));
  TC_ASSERT_OK(Compare(*replica, model_).status());
}

TEST_F(FileFaults, UnreadablePackedFileWithoutOrigin_GetFailsUntilReadable) {
  ASSERT_NO_FATAL_FAILURE(StartFaultyCluster());
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model_, /*durable=*/true));
  TC_ASSERT_OK(DropReplicas(0, put.artifact_id));
  const std::string moved = directory_->path() + "/moved.safetensors";
  fs::rename(model_, moved);  // no origin to fall back to
  SetFault(absl::StrCat("read EIO ", kModelBytes / 2, " ", PackedFiles()));
  const auto failed = client(0).Get(Context(), "m", {});
  EXPECT_FALSE(failed.ok());
  EXPECT_THAT(std::string(failed.status().message()), HasSubstr(PackedFiles()));
  TC_ASSERT_OK(invariants().Await(0, Soon(), [](const v1::GetStatusResponse& status) {
    return status.active_transfers() == 0 ? absl::OkStatus() : absl::InternalError("it still runs");
  }));
  EndFault();
  fs::rename(moved, model_);
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(0).Get(Context(), "m", {}));
  TC_ASSERT_OK(Compare(*replica, model_).status());
}

TEST_F(FileFaults, DiskFillsDuringDurablePut_PutFailsAndLeavesNoFile) {
  ASSERT_NO_FATAL_FAILURE(StartFaultyCluster());
  const int files = FilesIn(PackedFiles());
  SetFault(absl::StrCat("write ENOSPC ", kModelBytes / 2, " ", PackedFiles()));
  const auto put = Import(0, "m", model_, /*durable=*/true);
  EXPECT_EQ(put.status().code(), absl::StatusCode::kResourceExhausted) << put.status();
  EXPECT_THAT(std::string(put.status().message()), HasSubstr(PackedFiles()));
  EXPECT_EQ(FilesIn(PackedFiles()), files);
  ExpectNothingIsLeftAndItWorksAgain(/*durable=*/true);
}

TEST_F(FileFaults, SyncFails_DurablePutFailsAndLeavesNoFile) {
  ASSERT_NO_FATAL_FAILURE(StartFaultyCluster());
  const int files = FilesIn(PackedFiles());
  SetFault(absl::StrCat("sync EIO 0 ", PackedFiles()));
  EXPECT_FALSE(Import(0, "m", model_, /*durable=*/true).ok());
  EXPECT_EQ(FilesIn(PackedFiles()), files);
  ExpectNothingIsLeftAndItWorksAgain(/*durable=*/true);
}

TEST_F(FileFaults, ShortWrites_AreContinued) {
  ASSERT_NO_FATAL_FAILURE(StartFaultyCluster());
  SetFault(absl::StrCat("write short 0 ", PackedFiles()));
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model_, /*durable=*/true));
  EndFault();
  TC_ASSERT_OK(DropReplicas(0, put.artifact_id));
  TC_ASSERT_OK(client(0).Get(Context(), "m", {.lane = "disk"}).status());
  TC_ASSERT_OK(invariants().VerifyReplicas(Soon()));
}

// The kernel tells of a failed write once: here to threads that wait for the pages, before the final sync.
TEST_F(FileFaults, WritebackFails_GetToFileFailsAndLeavesNoFile) {
  ASSERT_NO_FATAL_FAILURE(StartFaultyCluster());
  const std::string out = directory_->path() + "/out";
  fs::create_directory(out);
  for (const char* fault : {"writeback EIO 0 ", "sync EIO 0 "}) {
    SCOPED_TRACE(fault);
    SetFault(absl::StrCat(fault, out, "/"));
    TC_ASSERT_OK_AND_ASSIGN(
        const auto get,
        Process::Start({.argv = {DefaultOptions().binary, "get", "other", "--out", out + "/copy.safetensors",
                                 "--daemon", cluster_->addresses(0).unix_socket},
                        .environment = environment_,
                        .log_path = directory_->path() + "/get"}));
    TC_ASSERT_OK_AND_ASSIGN(const int code, get->Wait(Soon()));
    EXPECT_EQ(code, 1);
    EXPECT_THAT(FileTail(directory_->path() + "/get", 3), HasSubstr("Input/output error"));
    EXPECT_EQ(FilesIn(out), 0);
  }
  EndFault();
}

TEST_F(FileFaults, MetadataStoreCannotWrite_NothingIsAcknowledged) {
  ASSERT_NO_FATAL_FAILURE(StartFaultyCluster(/*faulty_global_store=*/true));
  for (const char* fault : {"write ENOSPC 0 ", "write EIO 0 ", "sync EIO 0 "}) {
    SCOPED_TRACE(fault);
    SetFault(absl::StrCat(fault, directory_->path(), "/global-store/metadata.db"));
    const auto put = client(0).Import(Context(absl::Seconds(10)), model_, {.key = "m"});
    EXPECT_FALSE(put.ok());
    // Reads go on, and what was acknowledged is there.
    TC_ASSERT_OK(invariants().CheckAcknowledged(Soon()));
    EndFault();
    EXPECT_EQ(client(0).ResolveKey(Context(), "m").status().code(), absl::StatusCode::kNotFound);
    TC_ASSERT_OK(invariants().AwaitBaseline(Soon()));
  }
  ExpectNothingIsLeftAndItWorksAgain(/*durable=*/false);
  TC_ASSERT_OK(cluster_->global_store().Signal(SIGKILL));
  TC_ASSERT_OK(cluster_->global_store().Wait(Soon()).status());
  TC_ASSERT_OK(cluster_->RestartGlobalStore());
  TC_ASSERT_OK(invariants().AwaitWhole(Soon()));
  TC_ASSERT_OK(invariants().CheckAcknowledged(Soon()));
}

TEST_F(FileFaults, StateNotWritable_DaemonEndsAndNamesFolder) {
  ASSERT_NO_FATAL_FAILURE(StartFaultyCluster());
  TC_ASSERT_OK(cluster_->daemon(0).Stop(absl::Seconds(20)).status());
  SetFault(absl::StrCat("write ENOSPC 0 ", cluster_->daemon_directory(0)));
  EXPECT_FALSE(cluster_->RestartDaemon(0).ok());
  TC_ASSERT_OK_AND_ASSIGN(const int code, cluster_->daemon(0).Wait(Soon()));
  EXPECT_EQ(code, 1);
  EXPECT_THAT(FileTail(cluster_->daemon_directory(0) + "/log", 3), HasSubstr(cluster_->daemon_directory(0)));
  EndFault();
  TC_ASSERT_OK(cluster_->RestartDaemon(0));
  TC_ASSERT_OK(invariants().AwaitWhole(Soon()));
  TC_ASSERT_OK(invariants().CheckAcknowledged(Soon()));
}

}  // namespace
}  // namespace tensorcast
