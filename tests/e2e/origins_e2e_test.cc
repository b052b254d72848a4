// The files that artifacts were imported from: when they stand in for a replica, and when they do not.
#include <gmock/gmock.h>
#include <signal.h>

#include <chrono>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "client/admin.h"
#include "tests/e2e/e2e_test_base.h"

namespace tensorcast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kModelBytes = 40 << 20;

class Origins : public E2eTest {
 protected:
  // A daemon alone, with a pool for three such models.
  void StartAlone() {
    ClusterOptions options = DefaultOptions();
    options.daemons = 1;
    options.global_store = false;
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

  // Waits until the global store knows of one replica of the only artifact.
  void AwaitOneReplica() {
    const SteadyTime deadline = SteadyNow() + kStepTimeout;
    while (SteadyNow() < deadline) {
      TC_ASSERT_OK_AND_ASSIGN(
          const auto artifacts,
          admin_->ListArtifacts(Context(), /*unkeyed_only=*/false, absl::ZeroDuration(), /*replicas=*/true));
      ASSERT_EQ(artifacts.size(), 1);
      if (artifacts[0].replicas_size() == 1) return;
    }
    FAIL() << "more than one replica for a minute";
  }

  void ExpectTheKeyStillGives(const std::string& model) {
    TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(0).Get(Context(), "k", {}));
    TC_ASSERT_OK(Compare(*replica, model).status());
  }

  std::unique_ptr<client::AdminClient> admin_;
};

TEST_F(Origins, ImportedFileRemoved_LastCopyIsKept) {
  StartAlone();
  const std::string kept = MakeModel("kept.safetensors", kModelBytes);
  const std::string model = MakeModel("model.safetensors", kModelBytes);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "k"}).status());
  std::filesystem::remove(model);
  const absl::Status full = FillThePool();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr("the last copy of the artifact that key k names"));
  ExpectTheKeyStillGives(kept);
}

TEST_F(Origins, FindImported_FindsArtifactUntilFileChanges) {
  StartAlone();
  const std::string model = MakeModel("model.safetensors", kModelBytes);
  EXPECT_EQ(client(0).FindImported(Context(), model).status().code(), absl::StatusCode::kNotFound);
  TC_ASSERT_OK_AND_ASSIGN(const client::PutResult put, client(0).Import(Context(), model, {.key = "k"}));

  TC_ASSERT_OK_AND_ASSIGN(client::ImportedFile found, client(0).FindImported(Context(), model));
  EXPECT_EQ(found.artifact_id, put.artifact_id);
  EXPECT_EQ(found.files, 1u);
  const std::string link = model + ".link";
  std::filesystem::create_symlink(model, link);
  TC_ASSERT_OK_AND_ASSIGN(found, client(0).FindImported(Context(), link));
  EXPECT_EQ(found.artifact_id, put.artifact_id);

  std::filesystem::last_write_time(model,
                                   std::filesystem::last_write_time(model) + std::chrono::nanoseconds(1));
  EXPECT_EQ(client(0).FindImported(Context(), model).status().code(), absl::StatusCode::kNotFound);
  std::filesystem::remove(model);
  EXPECT_EQ(client(0).FindImported(Context(), model).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(Origins, FailedPut_KeepsReplicasThatExistedBefore) {
  StartAlone();
  const std::string kept = MakeModel("kept.safetensors", kModelBytes);
  for (const bool durable : {false, true}) {
    SCOPED_TRACE(durable ? "durable" : "in memory");
    const std::string model = MakeModel("model.safetensors", kModelBytes);
    TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "k"}).status());  // once; then it is here
    // The same content, which is found to be here once it is read, and a key that it may not take.
    const auto again = client(0).Import(Context(), kept,
                                        {.key = "k", .expected_revision = uint64_t{77}, .durable = durable});
    EXPECT_EQ(again.status().code(), absl::StatusCode::kFailedPrecondition) << again.status();
    std::filesystem::remove(model);
    ExpectTheKeyStillGives(kept);
  }
}

TEST_F(Origins, ImportedFileOverwritten_LastCopyIsKept) {
  StartAlone();
  const std::string kept = MakeModel("kept.safetensors", kModelBytes);
  const std::string model = MakeModel("model.safetensors", kModelBytes);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "k"}).status());
  MakeModel("model.safetensors", kModelBytes, 1, 2);
  EXPECT_EQ(FillThePool().code(), absl::StatusCode::kResourceExhausted);
  ExpectTheKeyStillGives(kept);
}

TEST_F(Origins, LastCopyWithoutItsFile_IsEvictedByHandOnlyWithForce) {
  StartAlone();
  const std::string model = MakeModel("model.safetensors", kModelBytes);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, client(0).Import(Context(), model, {.key = "k"}));
  std::filesystem::rename(model, model + ".moved");
  const CommandResult refused =
      RunCommand({"replica", "rm", put.replica_id, "--daemon", cluster_->addresses(0).unix_socket});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.output, AllOf(HasSubstr("last copy"), HasSubstr("model.safetensors")));
  ExpectTheKeyStillGives(model + ".moved");
  EXPECT_EQ(
      RunCommand({"replica", "rm", put.replica_id, "--force", "--daemon", cluster_->addresses(0).unix_socket})
          .exit_code,
      0);
}

TEST_F(Origins, TruncatedPackedFile_DoesNotCountAsCopy) {
  StartAlone();
  const std::string kept = MakeModel("kept.safetensors", kModelBytes);
  const std::string model = MakeModel("model.safetensors", kModelBytes);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, client(0).Import(Context(), model, {.key = "k", .durable = true}));
  std::filesystem::remove(model);
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(cluster_->daemon_directory(0) + "/artifacts")) {
    if (entry.is_regular_file()) std::filesystem::resize_file(entry.path(), kModelBytes / 2);
  }
  const absl::Status refused = admin_->EvictReplica(Context(), put.replica_id, /*force=*/false);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("was cut short"));
  EXPECT_EQ(FillThePool().code(), absl::StatusCode::kResourceExhausted);
  ExpectTheKeyStillGives(kept);
}

TEST_F(Origins, RemovedPackedFile_DoesNotCountAsCopy) {
  StartAlone();
  const std::string kept = MakeModel("kept.safetensors", kModelBytes);
  const std::string model = MakeModel("model.safetensors", kModelBytes);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, client(0).Import(Context(), model, {.key = "k", .durable = true}));
  std::filesystem::remove(model);
  std::vector<std::filesystem::path> packed;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(cluster_->daemon_directory(0) + "/artifacts")) {
    if (entry.path().extension() == ".tcpack") packed.push_back(entry.path());
  }
  ASSERT_EQ(packed.size(), 1);
  std::filesystem::remove(packed[0]);
  // At once, while the global store still lists it, or, on a slow machine, after the daemon has found it out.
  const absl::Status refused = admin_->EvictReplica(Context(), put.replica_id, /*force=*/false);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  EXPECT_EQ(FillThePool().code(), absl::StatusCode::kResourceExhausted);
  ExpectTheKeyStillGives(kept);
}

TEST_F(Origins, ReplicaWithIntactFile_IsEvictedAndReadAgain) {
  StartAlone();
  const std::string model = MakeModel("model.safetensors", kModelBytes);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, client(0).Import(Context(), model, {.key = "k"}));
  EXPECT_EQ(FillThePool().code(), absl::StatusCode::kResourceExhausted);
  TC_ASSERT_OK_AND_ASSIGN(const auto replicas, admin_->ListReplicas(Context(), put.artifact_id));
  EXPECT_TRUE(replicas.empty());
  TC_ASSERT_OK_AND_ASSIGN(const auto filler, client(0).ResolveKey(Context(), "filler/0"));
  TC_ASSERT_OK_AND_ASSIGN(const auto fillers, admin_->ListReplicas(Context(), filler.artifact_id));
  ASSERT_EQ(fillers.size(), 1);
  TC_ASSERT_OK(admin_->EvictReplica(Context(), fillers[0].replica_id(), /*force=*/true));
  ExpectTheKeyStillGives(model);
}

// The node that reads waits for no other node: its `peer_timeout` is longer than the get may take.
TEST_F(Origins, IntactImportedFile_ServesOtherNodesAtOnce) {
  ClusterOptions options = DefaultOptions();
  options.daemon_settings.push_back("daemon.peer_timeout=10m");
  StartCluster(options);
  const std::string model = MakeModel("model.safetensors", kModelBytes);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, client(0).Import(Context(), model, {.key = "k"}));
  TC_ASSERT_OK_AND_ASSIGN(admin_, client::AdminClient::Connect(cluster_->addresses(0).unix_socket));
  TC_ASSERT_OK(AwaitOriginsCompared(0));
  TC_ASSERT_OK(admin_->EvictReplica(Context(), put.replica_id, /*force=*/false));
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(1).Get(Context(), "k", {}));
  TC_ASSERT_OK(Compare(*replica, model).status());
}

TEST_F(Origins, ImportedFileGone_GetOnOtherNodeFailsAndNamesNode) {
  StartCluster();
  const std::string model = MakeModel("model.safetensors", kModelBytes);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, client(0).Import(Context(), model, {.key = "k"}));
  TC_ASSERT_OK_AND_ASSIGN(admin_, client::AdminClient::Connect(cluster_->addresses(0).unix_socket));
  TC_ASSERT_OK(AwaitOriginsCompared(0));
  TC_ASSERT_OK(admin_->EvictReplica(Context(), put.replica_id, /*force=*/false));
  std::filesystem::remove(model);
  const absl::Status lost = client(1).Get(Context(), "k", {}).status();
  EXPECT_EQ(lost.code(), absl::StatusCode::kNotFound) << lost;
  EXPECT_THAT(std::string(lost.message()), HasSubstr("the imported files of node node-0 are gone"));
}

TEST_F(Origins, FileOnUnresponsiveNode_DoesNotCountAsCopy) {
  StartCluster();
  const std::string model = MakeModel("model.safetensors", kModelBytes);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, client(0).Import(Context(), model, {.key = "k"}));
  TC_ASSERT_OK_AND_ASSIGN(const auto copy, client(1).Get(Context(), "k", {.attach = false}));
  TC_ASSERT_OK_AND_ASSIGN(const auto admin, client::AdminClient::Connect(cluster_->addresses(0).unix_socket));
  TC_ASSERT_OK(admin->EvictReplica(Context(), put.replica_id, /*force=*/true));
  TC_ASSERT_OK_AND_ASSIGN(admin_, client::AdminClient::Connect(cluster_->addresses(1).unix_socket));
  AwaitOneReplica();
  TC_ASSERT_OK(cluster_->daemon(0).Signal(SIGSTOP));
  const absl::Status refused = admin_->EvictReplica(Context(), copy->replica_id(), /*force=*/false);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
  TC_ASSERT_OK(cluster_->daemon(0).Signal(SIGCONT));
}

}  // namespace
}  // namespace tensorcast
