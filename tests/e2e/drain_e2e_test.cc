// SIGTERM: a daemon ends what it has begun, begins nothing new, and exits with 0.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <atomic>

#include "absl/time/clock.h"
#include "client/admin.h"
#include "tests/e2e/e2e_test_base.h"

namespace tensorcast {
namespace {

// Longer than a daemon drains (15 s), with room for a slow machine.
constexpr absl::Duration kExit = absl::Seconds(40);

class Drain : public E2eTest {
 protected:
  // Pools that hold a model large enough to be caught in the middle of its transfer, and nodes that may be
  // stopped for a while without being given up.
  ClusterOptions PatientOptions() const {
    ClusterOptions options = DefaultOptions();
    options.global_store_settings = {"global_store.heartbeat_interval=200ms", "global_store.node_ttl=30s"};
    options.daemon_settings.push_back("daemon.host_pool=640MiB");
    options.daemon_settings.push_back("daemon.peer_timeout=30s");
    return options;
  }

  // Starts a get on node 1 from node 0 and stops node 1 in the middle of it.
  std::unique_ptr<client::PendingGet> StartGetAndStopItsReceiver() {
    client::GetOptions get{.lane = "ucx"};
    get.on_progress = [this](const TransferProgress& progress) {
      if (progress.bytes_done == 0 || stopped_.exchange(true)) return;
      (void)cluster_->daemon(1).Signal(SIGSTOP);
    };
    return client(1).StartGet(Context(), "m", get);
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

  std::atomic<bool> stopped_ = false;
};

TEST_F(Drain, ASourceEndsItsTransferTakesNoNewOneAndExitsWithZero) {
  ClusterOptions options = PatientOptions();
  options.daemons = 3;
  StartCluster(options);
  const std::string model = MakeModel("model.safetensors", 500 << 20);
  const std::string small = MakeModel("small.safetensors", 4 << 20, 1, 2);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  const auto get = StartGetAndStopItsReceiver();
  TC_ASSERT_OK(AwaitStatus(0, [&](const auto& status) { return stopped_ && status.active_servings() == 1; }));

  TC_ASSERT_OK(cluster_->daemon(0).Signal(SIGTERM));
  TC_ASSERT_OK(AwaitThatTheClusterKnows("node-0"));
  // Nothing new: neither asked of it, nor of the cluster, for which it was the only source.
  EXPECT_EQ(client(0).Import(Context(absl::Seconds(2)), small, {}).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_FALSE(client(2).Get(Context(absl::Seconds(3)), "m", {.lane = "ucx"}).ok());
  EXPECT_TRUE(cluster_->daemon(0).running()) << "it left before its transfer had ended";

  TC_ASSERT_OK(cluster_->daemon(1).Signal(SIGCONT));
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, get->Wait(absl::Now() + kStepTimeout));
  TC_ASSERT_OK(Compare(*replica, model).status());
  EXPECT_EQ(replica->transfer()->refetched_chunks, 0u);
  for (const StageReport& stage : replica->transfer()->stages) EXPECT_TRUE(stage.status.ok()) << stage.status;
  EXPECT_EQ(cluster_->daemon(0).Wait(absl::Now() + kExit).value_or(-1), 0);
  // The one that pulled is a source now.
  TC_ASSERT_OK_AND_ASSIGN(const auto elsewhere, client(2).Get(Context(), "m", {}));
  TC_ASSERT_OK(Compare(*elsewhere, model).status());
}

TEST_F(Drain, ATransferThatDoesNotEndIsGivenUpAndTheExitCodeIsStillZero) {
  StartCluster(PatientOptions());
  const std::string model = MakeModel("model.safetensors", 500 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  const auto get = StartGetAndStopItsReceiver();
  TC_ASSERT_OK(AwaitStatus(0, [&](const auto& status) { return stopped_ && status.active_servings() == 1; }));
  TC_ASSERT_OK(cluster_->daemon(0).Signal(SIGTERM));
  EXPECT_EQ(cluster_->daemon(0).Wait(absl::Now() + kExit).value_or(-1), 0);
  TC_ASSERT_OK(cluster_->daemon(1).Signal(SIGCONT));
  const auto replica = get->Wait(absl::Now() + kStepTimeout);
  EXPECT_FALSE(replica.ok());
  EXPECT_NE(replica.status().code(), absl::StatusCode::kDeadlineExceeded) << replica.status();
}

TEST_F(Drain, AnAttachedClientReadsOnAfterItsDaemonHasExited) {
  StartCluster();
  const std::string model = MakeModel("model.safetensors", 8 << 20);
  TC_ASSERT_OK(client(0).Import(Context(), model, {.key = "m"}).status());
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(0).Get(Context(), "m", {}));
  TC_ASSERT_OK(cluster_->daemon(0).Signal(SIGTERM));
  EXPECT_EQ(cluster_->daemon(0).Wait(absl::Now() + kExit).value_or(-1), 0);
  TC_ASSERT_OK(Compare(*replica, model).status());
}

TEST_F(Drain, AnIdleGlobalStoreExitsWithZero) {
  StartCluster();
  EXPECT_EQ(cluster_->global_store().Stop(kExit).value_or(-1), 0);
}

}  // namespace
}  // namespace tensorcast
