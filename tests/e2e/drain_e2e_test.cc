// SIGTERM: a daemon ends its running work, begins no more, and exits with 0. `node drain` empties a node, and
// its daemon goes on.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>

#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "client/admin.h"
#include "tests/e2e/e2e_test_base.h"

namespace tensorcast {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// Longer than a daemon drains (15 s), with room for a slow machine.
constexpr absl::Duration kExit = absl::Seconds(40);

class Drain : public E2eTest {
 protected:
  // Nodes of which one may wait for its GPU for a while without being given up.
  void StartPatientCluster(int daemons) {
    ClusterOptions options = DefaultOptions();
    options.daemons = daemons;
    options.daemon_settings.push_back("daemon.peer_timeout=30s");
    TC_ASSERT_OK_AND_ASSIGN(receivers_gpu_, AddDeviceFaults(options, 1));
    StartCluster(options);
  }

  // Starts a get on node 1 from node 0, which stays in its middle until node 1's GPU is let go on.
  absl::StatusOr<std::unique_ptr<client::PendingGet>> StartGetAndHoldIt() {
    HoldCopies(*receivers_gpu_);
    auto get = client(1).StartGet(Context(), "m", {.location = "gpu:0", .lane = "tcp"});
    TC_RETURN_IF_ERROR(AwaitHeldCopy(*receivers_gpu_));
    TC_RETURN_IF_ERROR(AwaitStatus(0, [&](const auto& status) { return status.active_servings() == 1; }));
    return get;
  }

  absl::Status AwaitStatus(int node, const std::function<bool(const v1::GetStatusResponse&)>& condition) {
    auto admin = client::AdminClient::Connect(cluster_->addresses(node).unix_socket);
    if (!admin.ok()) return admin.status();
    bool met = false;
    const absl::Status status =
        (*admin)->WatchStatus(Context(), absl::Milliseconds(20), [&](const v1::GetStatusResponse& now) {
          met = condition(now);
          return !met;
        });
    return met ? absl::OkStatus() : Annotate(status, "the condition was never met");
  }

  // Waits until the global store, asked through node 2, counts that node as draining.
  absl::Status AwaitThatTheClusterKnows(const std::string& name) {
    TC_ASSIGN_OR_RETURN(const auto admin, client::AdminClient::Connect(cluster_->addresses(2).unix_socket));
    return AwaitStatus(2, [&](const v1::GetStatusResponse&) {
      const auto cluster = admin->GetClusterStatus(Context());
      return cluster.ok() && std::ranges::any_of(cluster->nodes(), [&](const v1::Node& node) {
               return node.name() == name && node.draining();
             });
    });
  }

  std::shared_ptr<DeviceFaults> receivers_gpu_;
};

TEST_F(Drain, DrainingSource_FinishesTransferRefusesNewAndExitsZero) {
  ASSERT_NO_FATAL_FAILURE(StartPatientCluster(3));
  const std::string model = MakeModel("model.safetensors", 80 << 20);
  const std::string small = MakeModel("small.safetensors", 4 << 20, 1, 2);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto get, StartGetAndHoldIt());

  TC_ASSERT_OK(cluster_->daemon(0).Signal(SIGTERM));
  TC_ASSERT_OK(AwaitThatTheClusterKnows("node-0"));
  // Nothing new: neither asked of it, nor of the cluster, for which it was the only source.
  EXPECT_EQ(client(0).Import(Context(), small, {}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(client(2).Get(Context(absl::Seconds(3)), "m", {.lane = "tcp"}).ok());
  EXPECT_TRUE(cluster_->daemon(0).running()) << "it left before its transfer had ended";

  receivers_gpu_->copy_delay_ns = 0;
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, get->Wait(SteadyNow() + kStepTimeout));
  TC_ASSERT_OK(Compare(*replica, model).status());
  EXPECT_EQ(replica->transfer()->refetched_chunks, 0u);
  for (const StageReport& stage : replica->transfer()->stages) EXPECT_TRUE(stage.status.ok()) << stage.status;
  EXPECT_EQ(cluster_->daemon(0).Wait(SteadyNow() + kExit).value_or(-1), 0);
  // The one that pulled is a source now.
  TC_ASSERT_OK_AND_ASSIGN(const auto elsewhere, client(2).Get(Context(), "m", {}));
  TC_ASSERT_OK(Compare(*elsewhere, model).status());
}

TEST_F(Drain, DrainWithHangingTransfer_GivesItUpAndExitsZero) {
  ASSERT_NO_FATAL_FAILURE(StartPatientCluster(2));
  const std::string model = MakeModel("model.safetensors", 80 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto get, StartGetAndHoldIt());
  TC_ASSERT_OK(cluster_->daemon(0).Signal(SIGTERM));
  EXPECT_EQ(cluster_->daemon(0).Wait(SteadyNow() + kExit).value_or(-1), 0);
  receivers_gpu_->copy_delay_ns = 0;
  const auto replica = get->Wait(SteadyNow() + kStepTimeout);
  EXPECT_FALSE(replica.ok());
  EXPECT_NE(replica.status().code(), absl::StatusCode::kDeadlineExceeded) << replica.status();
}

TEST_F(Drain, DaemonExited_AttachedClientStillReads) {
  StartCluster();
  const std::string model = MakeModel("model.safetensors", 8 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(0).Get(Context(), "m", {}));
  TC_ASSERT_OK(cluster_->daemon(0).Signal(SIGTERM));
  EXPECT_EQ(cluster_->daemon(0).Wait(SteadyNow() + kExit).value_or(-1), 0);
  TC_ASSERT_OK(Compare(*replica, model).status());
}

TEST_F(Drain, DrainedNode_LosesItsCopiesAndGetsNoneUntilUndrained) {
  ASSERT_NO_FATAL_FAILURE(StartPatientCluster(2));
  const std::string model = MakeModel("model.safetensors", 8 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, client(0).Import(Context(), model, {.key = "m"}));
  TC_ASSERT_OK(client(1).Get(Context(), "m", {.attach = false}).status());
  const auto on_node = [&](int node, std::vector<std::string> command) {
    command.insert(command.end(), {"--daemon", cluster_->addresses(node).unix_socket});
    return RunCommand(std::move(command));
  };
  const auto holds_copy = [&] {
    return on_node(1, {"replica", "ls"}).output.find(put.artifact_id) != std::string::npos;
  };
  ASSERT_TRUE(holds_copy());

  const CommandResult drained = on_node(0, {"node", "drain", "node-1"});
  EXPECT_EQ(drained.exit_code, 0) << drained.output;
  EXPECT_THAT(on_node(0, {"node", "ls"}).output, ContainsRegex("node-1 +[^ ]+ +draining"));
  EXPECT_TRUE(testing::Eventually([&] { return !holds_copy(); }));
  const CommandResult refused = on_node(1, {"get", "m"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.output, HasSubstr("`tensorcast node undrain node-1`"));
  const CommandResult submitted = on_node(0, {"replicate", "m", "--to", "node-1", "--no-wait"});
  EXPECT_EQ(submitted.exit_code, 0) << submitted.output;
  EXPECT_THAT(on_node(0, {"replication", "ls", "m"}).output, HasSubstr("node-1, which drains"));

  EXPECT_EQ(on_node(0, {"node", "undrain", "node-1"}).exit_code, 0);
  EXPECT_TRUE(testing::Eventually(holds_copy));
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(1).Get(Context(), "m", {}));
  TC_ASSERT_OK(Compare(*replica, model).status());
}

TEST_F(Drain, IdleGlobalStoreStopped_ExitsZero) {
  StartCluster();
  EXPECT_EQ(cluster_->global_store().Stop(kExit).value_or(-1), 0);
}

}  // namespace
}  // namespace tensorcast
