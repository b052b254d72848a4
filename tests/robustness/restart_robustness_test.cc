// The global store restarted, with its database and without; daemons restarted where they listened before;
// artifacts deleted and put again.
#include <gmock/gmock.h>
#include <signal.h>

#include <cstring>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/robustness/robustness_test_base.h"

namespace tensorcast {
namespace {

using ::testing::HasSubstr;

class Restart : public RobustnessTest {};

TEST_F(Restart, DatabaseLost_ArtifactsAndReplicasReturnButKeysDoNot) {
  StartRobustCluster(FastOptions());
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model));
  TC_ASSERT_OK(client(1).Get(Context(), "m", {}).status());
  TC_ASSERT_OK(AwaitReplicas(1, put.artifact_id, 2));

  TC_ASSERT_OK(cluster_->global_store().Signal(SIGKILL));
  TC_ASSERT_OK(cluster_->global_store().Wait(Soon()).status());
  for (const auto& entry : std::filesystem::directory_iterator(directory_->path() + "/global-store")) {
    if (entry.path().filename().string().starts_with("metadata.db")) std::filesystem::remove(entry.path());
  }
  TC_ASSERT_OK(cluster_->RestartGlobalStore());
  TC_ASSERT_OK(invariants().AwaitWhole(Soon()));
  TC_ASSERT_OK(AwaitReplicas(0, put.artifact_id, 2));
  EXPECT_EQ(client(0).ResolveKey(Context(), "m").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(FileTail(cluster_->daemon_directory(0) + "/log", 50) +
                  FileTail(cluster_->daemon_directory(1) + "/log", 50),
              HasSubstr("if the store lost its database, bind the keys again"));

  TC_ASSERT_OK(client(1).BindKey(Context(), "m", put.artifact_id, 0).status());
  TC_ASSERT_OK(invariants().CheckAcknowledged(Soon()));
  TC_ASSERT_OK(invariants().VerifyReplicas(Soon()));
  TC_ASSERT_OK(DropReplicas(1, put.artifact_id));
  TC_ASSERT_OK_AND_ASSIGN(const auto again, client(1).Get(Context(), "m", {.lane = "tcp"}));
  TC_ASSERT_OK(Compare(*again, model).status());
}

TEST_F(Restart, GlobalStoreKilled_RestartsWithAllArtifactsAndKeys) {
  StartRobustCluster(FastOptions());
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model));
  TC_ASSERT_OK(client(1).Get(Context(), "m", {}).status());
  TC_ASSERT_OK(invariants().RecordBaseline(Soon()));
  TC_ASSERT_OK(cluster_->global_store().Signal(SIGKILL));
  TC_ASSERT_OK(cluster_->global_store().Wait(Soon()).status());
  TC_ASSERT_OK(cluster_->RestartGlobalStore());
  TC_ASSERT_OK(invariants().AwaitWhole(Soon()));
  TC_ASSERT_OK(AwaitReplicas(0, put.artifact_id, 2));
  TC_ASSERT_OK(invariants().CheckAcknowledged(Soon()));
  TC_ASSERT_OK(invariants().VerifyReplicas(Soon()));
  TC_ASSERT_OK(invariants().AwaitBaseline(Soon()));
}

TEST_F(Restart, DaemonThatServedPull_RestartsAtOnceOnSamePort) {
  ClusterOptions options = FastOptions();
  options.settings_of_daemon = {{absl::StrCat("daemon.tcp_listen=127.0.0.1:", FreePort())}};
  StartRobustCluster(options);
  const std::string model = MakeModel("model.safetensors", 4 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model, /*durable=*/true));
  for (const int stopped_by : {SIGTERM, SIGKILL}) {
    SCOPED_TRACE(strsignal(stopped_by));
    TC_ASSERT_OK_AND_ASSIGN(auto replica, client(1).Get(Context(), "m", {.lane = "tcp"}));
    replica.reset();
    TC_ASSERT_OK(DropReplicas(1, put.artifact_id));
    TC_ASSERT_OK(cluster_->daemon(0).Signal(stopped_by));
    TC_ASSERT_OK(cluster_->daemon(0).Wait(Soon()).status());
    TC_ASSERT_OK(cluster_->RestartDaemon(0));
    Reconnect(0);
    TC_ASSERT_OK(AwaitReplicas(1, put.artifact_id, 1));
  }
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(1).Get(Context(), "m", {.lane = "tcp"}));
  TC_ASSERT_OK(Compare(*replica, model).status());
}

// What it acknowledged from now on would end with its process.
TEST_F(Restart, DatabaseFileRemoved_StoreRefusesWritesUntilItIsBack) {
  StartRobustCluster(FastOptions());
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model));
  const std::string folder = directory_->path() + "/global-store";
  const std::string database = folder + "/metadata.db";
  std::filesystem::rename(database, database + ".aside");

  const std::string removed = database + ": the file was removed while this global store ran";
  TC_ASSERT_OK(invariants().Await(0, Soon(), [&](const v1::GetStatusResponse&) -> absl::Status {
    if (absl::StrContains(FileTail(folder + "/log", 5), removed)) return absl::OkStatus();
    return absl::UnavailableError("the global store's log says nothing yet");
  }));
  const absl::Status refused = client(0).BindKey(Context(), "lost", put.artifact_id, 0).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss) << refused;
  EXPECT_THAT(refused.message(), HasSubstr(removed));
  TC_ASSERT_OK(invariants().CheckAcknowledged(Soon()));

  std::filesystem::rename(database + ".aside", database);
  TC_ASSERT_OK(client(0).BindKey(Context(), "kept", put.artifact_id, 0).status());
  invariants().Acknowledge("kept", put.artifact_id, model);
  TC_ASSERT_OK(cluster_->global_store().Signal(SIGKILL));
  TC_ASSERT_OK(cluster_->global_store().Wait(Soon()).status());
  TC_ASSERT_OK(cluster_->RestartGlobalStore());
  TC_ASSERT_OK(invariants().AwaitWhole(Soon()));
  TC_ASSERT_OK(invariants().CheckAcknowledged(Soon()));
}

// What was asked to be durable is on the disk when it is acknowledged, even if it was removed there before.
TEST_F(Restart, PackedFileRemoved_DurablePutPacksItAgain) {
  ClusterOptions options = FastOptions();
  options.daemons = 1;
  StartRobustCluster(options);
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK(Import(0, "m", model, /*durable=*/true).status());
  for (const auto& entry :
       std::filesystem::directory_iterator(cluster_->daemon_directory(0) + "/artifacts")) {
    std::filesystem::remove(entry.path());
  }
  TC_ASSERT_OK(Import(0, "m", model, /*durable=*/true).status());
  std::filesystem::remove(model);
  TC_ASSERT_OK(cluster_->daemon(0).Signal(SIGKILL));
  TC_ASSERT_OK(cluster_->daemon(0).Wait(Soon()).status());
  TC_ASSERT_OK(cluster_->RestartDaemon(0));
  Reconnect(0);
  TC_ASSERT_OK(client(0).Get(Context(), "m", {}).status());
}

// The global store tells the node to drop the artifact until it is published again; a durable put takes
// several heartbeats between its first replica and that.
TEST_F(Restart, DeletedArtifact_CanBePutAgainDurably) {
  ClusterOptions options = FastOptions();
  options.daemons = 1;
  options.global_store_settings.push_back("global_store.heartbeat_interval=10ms");
  StartRobustCluster(options);
  const std::string model = MakeModel("model.safetensors", 64 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto admin, Admin(0));
  for (int round = 0; round < 3; ++round) {
    TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model, /*durable=*/true));
    TC_ASSERT_OK(AwaitReplicas(0, put.artifact_id, 2));
    TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(0).Get(Context(), "m", {}));
    TC_ASSERT_OK(Compare(*replica, model).status());
    TC_ASSERT_OK(client(0).DeleteKey(Context(), "m", std::nullopt));
    TC_ASSERT_OK(admin->DeleteArtifact(Context(), put.artifact_id));
  }
}

}  // namespace
}  // namespace tensorcast
