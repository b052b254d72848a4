// put of files as users do it: the client opens them, by its own permission, and the daemon needs no
// configuration for that. What is not a regular file, what changes, and what hangs.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/posix/unix_socket.h"
#include "base/steady_time.h"
#include "client/admin.h"
#include "core/handles/codec.h"
#include "core/handles/frame_io.h"
#include "core/testing/hanging_folder.h"
#include "tests/e2e/e2e_test_base.h"

namespace tensorcast {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr uid_t kOtherUser = 65534;
constexpr uint64_t kModelBytes = 8 << 20;

class PutFile : public E2eTest {
 protected:
  // A store and a daemon that imports nothing by path.
  void StartNode(std::vector<std::string> settings = {}) {
    ClusterOptions options = DefaultOptions();
    options.daemons = 1;
    options.daemon_settings.push_back("daemon.import_roots=");
    options.daemon_settings.insert(options.daemon_settings.end(), settings.begin(), settings.end());
    StartCluster(options);
  }

  CommandResult Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--daemon", cluster_->addresses(0).unix_socket});
    return RunCommand(std::move(arguments));
  }
  std::unique_ptr<Process> StartPut(const std::string& path) {
    auto started = Process::Start(
        {.argv = {DefaultOptions().binary, "put", path, "--daemon", cluster_->addresses(0).unix_socket},
         .log_path = Path("put.log")});
    EXPECT_TRUE(started.ok()) << started.status();
    return *std::move(started);
  }
  void ExpectStored(const std::string& key, const std::string& model) {
    TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(0).Get(Context(), key));
    TC_ASSERT_OK(Compare(*replica, model).status());
  }
  template <class Condition>
  void Await(Condition condition) {
    const SteadyTime deadline = SteadyNow() + kStepTimeout;
    while (!condition()) {
      ASSERT_LT(SteadyNow(), deadline);
      absl::SleepFor(absl::Milliseconds(2));
    }
  }
  std::string Path(const std::string& name) const { return directory_->path() + "/" + name; }
};

TEST_F(PutFile, PutFileWithoutImportRoots_StoresWhatCallerCanRead) {
  ASSERT_NO_FATAL_FAILURE(StartNode());
  const std::string file = MakeModel("model.safetensors", kModelBytes);
  const std::string shards = MakeModel("sharded", kModelBytes, /*shards=*/3);
  // As a model hub's cache: links into a folder beside.
  fs::create_directories(Path("hub/snapshots/main"));
  fs::create_directories(Path("hub/blobs"));
  fs::copy_file(file, Path("hub/blobs/0123"));
  fs::create_symlink("../../blobs/0123", Path("hub/snapshots/main/model.safetensors"));
  fs::create_symlink(file, Path("link.safetensors"));

  EXPECT_EQ(Run({"put", file, "--key", "file"}).exit_code, 0);
  EXPECT_EQ(Run({"put", shards, "--key", "shards", "--verify"}).exit_code, 0);
  EXPECT_EQ(Run({"put", Path("hub/snapshots/main"), "--key", "hub"}).exit_code, 0);
  EXPECT_EQ(Run({"put", Path("link.safetensors"), "--key", "link"}).exit_code, 0);
  EXPECT_EQ(Run({"put", fs::relative(file).string(), "--key", "relative"}).exit_code, 0);
  ExpectStored("file", file);
  ExpectStored("shards", shards);
  TC_ASSERT_OK_AND_ASSIGN(const auto by_file, client(0).ResolveKey(Context(), "file"));
  for (const char* key : {"hub", "link", "relative"}) {
    TC_ASSERT_OK_AND_ASSIGN(const auto same, client(0).ResolveKey(Context(), key));
    EXPECT_EQ(same.artifact_id, by_file.artifact_id) << key;
  }
}

// The daemon cannot read the file again by itself, so it is not a copy.
TEST_F(PutFile, PutFileOutsideImportRoots_ReplicaStaysTheLastCopy) {
  ASSERT_NO_FATAL_FAILURE(StartNode());
  const std::string file = MakeModel("model.safetensors", kModelBytes);
  ASSERT_EQ(Run({"put", file, "--key", "m"}).exit_code, 0);
  const CommandResult evicted = Run({"replica", "rm", "m"});
  EXPECT_EQ(evicted.exit_code, 1);
  EXPECT_THAT(evicted.output, HasSubstr("last copy"));
  ExpectStored("m", file);
}

TEST_F(PutFile, PutOfOtherThanModelFile_FailsAtOnceAndNamesIt) {
  ASSERT_NO_FATAL_FAILURE(StartNode());
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  fs::create_directory(Path("empty"));
  for (const auto& [path, said] :
       std::vector<std::pair<std::string, std::string>>{{Path("fifo"), "is not a regular file"},
                                                        {"/dev/zero", "is not a regular file"},
                                                        {Path("empty"), "holds neither"},
                                                        {Path("none"), "No such file"},
                                                        {"/proc/self/status", "not a safetensors file"},
                                                        {"", "empty"}}) {
    const CommandResult put = Run({"put", path});
    EXPECT_EQ(put.exit_code, 1) << path;
    EXPECT_THAT(put.output, HasSubstr(said)) << path;
    EXPECT_THAT(put.output, HasSubstr(path));
  }
}

// Of a group that may use the daemon, which is root's.
TEST_F(PutFile, PutOfFileThatOnlyDaemonMayRead_IsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const group* const theirs = getgrgid(kOtherUser);
  if (theirs == nullptr) GTEST_SKIP() << "that user's group has no name";
  ASSERT_NO_FATAL_FAILURE(StartNode({absl::StrCat("daemon.handle_groups=", theirs->gr_name)}));
  for (const std::string& folder : {directory_->path(), cluster_->daemon_directory(0)}) {
    ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
  }
  fs::copy_file(DefaultOptions().binary, Path("tensorcast"));
  const auto put_as_other = [&](const std::string& path) {
    const auto process = Process::Start(
        {.argv = {"/usr/bin/setpriv", absl::StrCat("--reuid=", kOtherUser),
                  absl::StrCat("--regid=", kOtherUser), "--clear-groups", Path("tensorcast"), "put", path,
                  "--daemon", "unix:" + cluster_->daemon_directory(0) + "/client.sock"},
         .log_path = Path("theirs.log")});
    return process.ok() ? (*process)->Wait(SteadyNow() + kStepTimeout).value_or(-1) : -1;
  };
  const std::string file = MakeModel("model.safetensors", kModelBytes);
  ASSERT_EQ(chmod(file.c_str(), 0600), 0);
  EXPECT_EQ(put_as_other(file), 1);
  EXPECT_THAT(FileTail(Path("theirs.log"), 5), HasSubstr("Permission denied"));
  ASSERT_EQ(chown(file.c_str(), kOtherUser, kOtherUser), 0);
  EXPECT_EQ(put_as_other(file), 0) << FileTail(Path("theirs.log"), 5);
}

TEST_F(PutFile, ClientKilledDuringPutOfFile_LeavesNothing) {
  ASSERT_NO_FATAL_FAILURE(StartNode());
  const std::string file = MakeModel("model.safetensors", 64 << 20);
  for (int i = 0; i < 5; ++i) {
    const auto put = StartPut(file);
    absl::SleepFor(absl::Milliseconds(30 * i));
    TC_ASSERT_OK(put->Signal(SIGKILL));
    (void)put->Wait(SteadyNow() + kStepTimeout);
  }
  TC_ASSERT_OK_AND_ASSIGN(const auto admin, client::AdminClient::Connect(cluster_->addresses(0).unix_socket));
  Await([&] {
    const auto status = admin->GetStatus(Context());
    return status.ok() && status->active_transfers() == 0;
  });
  EXPECT_EQ(Run({"put", file, "--key", "m"}).exit_code, 0);
  ExpectStored("m", file);
}

class PutHangingFile : public PutFile {
 protected:
  void SetUp() override {
    PutFile::SetUp();
    const std::string model = MakeModel("model.safetensors", kModelBytes);
    std::ifstream file(model, std::ios::binary);
    fs::create_directory(Path("mount"));
    auto mounted = testing::HangingFolder::Mount(Path("mount"), {std::istreambuf_iterator<char>(file), {}});
    if (!mounted.ok()) GTEST_SKIP() << mounted.status();
    folder_ = *std::move(mounted);
    // One ingest at a time: a put that keeps that turn keeps all others out.
    ASSERT_NO_FATAL_FAILURE(StartNode({"daemon.max_concurrent_ingests=1"}));
  }
  // What hangs fails before the daemon is stopped: the kernel closes the files of a process that ends, and
  // would wait for their file system.
  void TearDown() override {
    folder_.reset();
    PutFile::TearDown();
  }
  void ExpectServes(const std::string& key) {
    const std::string other = MakeModel(key, kModelBytes, 1, /*seed=*/7);
    EXPECT_EQ(Run({"put", other, "--key", key}).exit_code, 0);
    ExpectStored(key, other);
  }

  std::unique_ptr<testing::HangingFolder> folder_;
};

TEST_F(PutHangingFile, PutFromFileSystemThatAnswers_IsStored) {
  EXPECT_EQ(Run({"put", folder_->file(), "--key", "m", "--verify"}).exit_code, 0);
  ExpectStored("m", Path("model.safetensors"));
}

TEST_F(PutHangingFile, PutWithHangingRead_LeavesOthersTheirTurn) {
  folder_->HangReadsFrom(kModelBytes / 2);
  const auto put = StartPut(folder_->file());
  ASSERT_NO_FATAL_FAILURE(Await([&] { return folder_->hanging_reads() > 0; }));
  ExpectServes("other.safetensors");
  EXPECT_TRUE(put->running());
  // Its client goes, and with it its room, though its reads still hang.
  TC_ASSERT_OK(put->Signal(SIGKILL));
  (void)put->Wait(SteadyNow() + kStepTimeout);
  TC_ASSERT_OK_AND_ASSIGN(const auto admin, client::AdminClient::Connect(cluster_->addresses(0).unix_socket));
  ASSERT_NO_FATAL_FAILURE(Await([&] {
    const auto status = admin->GetStatus(Context());
    return status.ok() && status->active_transfers() == 0 && status->replicas() == 1;
  }));
  ExpectServes("third.safetensors");
  folder_.reset();  // the kernel ends no process with a read at the file system
  EXPECT_EQ(cluster_->daemon(0).Stop(kStepTimeout).value_or(-1), 0);
}

TEST_F(PutHangingFile, HangingClose_DoesNotBlockOtherPuts) {
  TC_ASSERT_OK_AND_ASSIGN(const sockaddr_un address, UnixAddress(cluster_->addresses(0).handle_socket));
  const UniqueFd peer(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(peer.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  // A frame that takes no descriptor: the daemon closes what came with it, once it has the whole frame. Until
  // then this process closes its own descriptor, which every program that it starts would close as well.
  const std::string frame = *EncodeFrame(HelloFrame{});
  {
    const UniqueFd file(open(folder_->file().c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_TRUE(file);
    ASSERT_TRUE(SendSome(peer.get(), frame.substr(0, 1), std::vector<int>{file.get()}).ok());
  }
  folder_->HangCloses();
  ASSERT_TRUE(SendSome(peer.get(), frame.substr(1), {}).ok());
  ASSERT_NO_FATAL_FAILURE(Await([&] { return folder_->hanging_closes() > 0; }));
  ExpectServes("other.safetensors");
}

}  // namespace
}  // namespace tensorcast
