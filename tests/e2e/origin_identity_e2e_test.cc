// Files that change while nothing of them seems to: they never stand in for the last replica.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/posix/unique_fd.h"
#include "base/steady_time.h"
#include "client/admin.h"
#include "tests/e2e/e2e_test_base.h"

namespace tensorcast {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr uint64_t kModelBytes = 40 << 20;

// A daemon alone, with a pool for three such models.
class OriginIdentity : public E2eTest {
 protected:
  void Start(const std::vector<std::string>& settings = {}) {
    ClusterOptions options = DefaultOptions();
    options.daemons = 1;
    options.global_store = false;
    options.daemon_settings.insert(options.daemon_settings.end(), settings.begin(), settings.end());
    StartCluster(options);
    TC_ASSERT_OK_AND_ASSIGN(admin_, client::AdminClient::Connect(cluster_->addresses(0).unix_socket));
  }

  // Puts one model after the other until the daemon has no room for one more; each one's file goes at once.
  absl::Status FillThePool() {
    for (int i = 0; i < 10; ++i) {
      const std::string model = MakeModel(absl::StrCat("filler-", i), kModelBytes, 1, 100 + i);
      const absl::Status put =
          client(0).Import(Context(), model, {.key = absl::StrCat("filler/", i)}).status();
      std::filesystem::remove(model);
      if (!put.ok()) return put;
    }
    return absl::OkStatus();
  }

  // Another byte in the middle of the file.
  static void StoreThroughMapping(const std::string& path) {
    const UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(fd);
    const auto bytes = static_cast<size_t>(std::filesystem::file_size(path));
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    ASSERT_NE(mapped, MAP_FAILED);
    static_cast<unsigned char*>(mapped)[bytes / 2] ^= 1;
    munmap(mapped, bytes);
  }

  void ExpectTheKeyStillGives(const std::string& model) {
    TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(0).Get(Context(), "k", {}));
    TC_ASSERT_OK(Compare(*replica, model).status());
  }

  v1::Origin OnlyOrigin() {
    const auto artifacts = admin_->ListArtifacts(Context(), false, absl::ZeroDuration());
    EXPECT_TRUE(artifacts.ok() && artifacts->size() == 1 && (*artifacts)[0].origins_size() == 1);
    return (*artifacts)[0].origins(0);
  }

  std::unique_ptr<client::AdminClient> admin_;
};

// As `touch -r` does it.
TEST_F(OriginIdentity, ImportedFileWithMtimeSetBack_LastReplicaIsKept) {
  Start();
  const std::string kept = MakeModel("kept.safetensors", kModelBytes);
  const std::string model = MakeModel("model.safetensors", kModelBytes);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, client(0).Import(Context(), model, {.key = "k", .verify = true}));
  TC_ASSERT_OK(AwaitOriginsCompared(0));
  const auto written = std::filesystem::last_write_time(model);
  StoreThroughMapping(model);
  std::filesystem::last_write_time(model, written);
  const absl::Status refused = admin_->EvictReplica(Context(), put.replica_id, /*force=*/false);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the ctime in ns was"));
  EXPECT_EQ(FillThePool().code(), absl::StatusCode::kResourceExhausted);
  ExpectTheKeyStillGives(kept);
  // It is another file to a client that looks for what it was imported as, too.
  EXPECT_EQ(client(0).FindImported(Context(), model).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(OriginIdentity, ImportedFileWrittenByMapping_LastReplicaIsKept) {
  TC_ASSERT_OK_AND_ASSIGN(const auto memory, [] {
    setenv("TMPDIR", "/dev/shm", 1);
    auto folder = TemporaryDirectory::Create("tensorcast-origin");
    unsetenv("TMPDIR");
    return folder;
  }());
  struct statfs system;
  if (statfs(memory->path().c_str(), &system) != 0 || system.f_type != TMPFS_MAGIC) {
    GTEST_SKIP() << "/dev/shm is not a tmpfs here";
  }
  Start({absl::StrCat("daemon.import_roots=", memory->path())});
  const std::string kept = MakeModel("kept.safetensors", kModelBytes);
  const std::string model = memory->path() + "/model.safetensors";
  std::filesystem::copy_file(kept, model);
  const UniqueFd fd(open(model.c_str(), O_RDWR | O_CLOEXEC));
  TC_ASSERT_OK_AND_ASSIGN(const auto put, client(0).Import(Context(), model, {.key = "k", .verify = true}));
  EXPECT_TRUE(OnlyOrigin().untraceable());
  EXPECT_EQ(OnlyOrigin().objects(0).uri(), model);
  StoreThroughMapping(model);
  const absl::Status refused = admin_->EvictReplica(Context(), put.replica_id, /*force=*/false);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("does not show every change of a file"));
  EXPECT_EQ(FillThePool().code(), absl::StatusCode::kResourceExhausted);
  ExpectTheKeyStillGives(kept);
}

TEST_F(OriginIdentity, OriginNotYetCompared_EvictionIsRefusedAndPutWaits) {
  Start({"daemon.compare_rate=10MiB"});  // four seconds
  const std::string model = MakeModel("model.safetensors", kModelBytes);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, client(0).Import(Context(), model, {.key = "k"}));
  const absl::Status refused = admin_->EvictReplica(Context(), put.replica_id, /*force=*/false);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr(absl::StrCat("the comparison of k with the imported files at ", model, " (")),
                    ContainsRegex("[0-9.]+ of [0-9.]+ MiB")));
  EXPECT_FALSE(OnlyOrigin().compared());

  absl::Mutex mutex;
  std::vector<std::string> waited_for;
  absl::Status put_more;
  for (int i = 0; i < 3 && put_more.ok(); ++i) {
    const std::string filler = MakeModel(absl::StrCat("filler-", i), kModelBytes, 1, 100 + i);
    put_more = client(0)
                   .Import(Context(), filler,
                           {.key = absl::StrCat("filler/", i),
                            .on_progress =
                                [&](const TransferProgress& progress) {
                                  absl::MutexLock lock(&mutex);
                                  waited_for.push_back(progress.waiting_for);
                                }})
                   .status();
    std::filesystem::remove(filler);
  }
  TC_ASSERT_OK(put_more);
  EXPECT_THAT(waited_for,
              testing::Contains(HasSubstr("the comparison of k with the imported files at " + model)));
  TC_ASSERT_OK_AND_ASSIGN(const auto replicas, admin_->ListReplicas(Context(), put.artifact_id));
  EXPECT_TRUE(replicas.empty()) << "it made room once it was compared";
}

TEST_F(OriginIdentity, RestartedDaemon_RemembersComparedOrigins) {
  Start();
  const std::string model = MakeModel("model.safetensors", kModelBytes);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "k"}).status());
  TC_ASSERT_OK(AwaitOriginsCompared(0));
  const std::string version = OnlyOrigin().objects(0).version();
  TC_ASSERT_OK(cluster_->daemon(0).Signal(SIGTERM));
  TC_ASSERT_OK(cluster_->daemon(0).Wait(SteadyNow() + kStepTimeout).status());
  // So slow that none would end before the test does.
  TC_ASSERT_OK(cluster_->RestartDaemon(0, {"daemon.compare_rate=1MiB"}));
  TC_ASSERT_OK_AND_ASSIGN(admin_, client::AdminClient::Connect(cluster_->addresses(0).unix_socket));
  EXPECT_TRUE(OnlyOrigin().compared());
  // The same files once more are known; touched ones are others.
  TC_ASSERT_OK_AND_ASSIGN(clients_[0], NewClient(0));
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "k"}).status());
  EXPECT_TRUE(OnlyOrigin().compared());
  EXPECT_EQ(chmod(model.c_str(), 0640), 0);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, client(0).Import(Context(), model, {.key = "k"}));
  EXPECT_NE(OnlyOrigin().objects(0).version(), version);
  EXPECT_FALSE(OnlyOrigin().compared());
  const absl::Status refused = admin_->EvictReplica(Context(), put.replica_id, /*force=*/false);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("after which the replica can be evicted"));
}

}  // namespace
}  // namespace tensorcast
