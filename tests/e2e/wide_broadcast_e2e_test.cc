// A model for the GPUs of four nodes is broadcast among all of them by the nodes' helper processes, any of
// which may die and hang, and so may a daemon.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "client/admin.h"
#include "core/replica/transfer_report.h"
#include "tests/e2e/e2e_test_base.h"
#include "tests/e2e/helper_processes.h"

namespace tensorcast {
namespace {

using testing::Eventually;
using ::testing::HasSubstr;

constexpr int kNodes = 4;
constexpr int kGpus = 4;  // of each
constexpr uint64_t kModelBytes = uint64_t{24} << 20;

class WideBroadcast : public E2eTest {
 protected:
  // The last daemon has no GPU; the model is there, which sends it slowly where that is asked for.
  void Start(bool slowly, bool trusted = true) {
    ClusterOptions options = DefaultOptions();
    options.daemons = kNodes + 1;
    options.global_store_settings.push_back("global_store.broadcast_min_bytes=16MiB");
    options.daemon_settings.insert(options.daemon_settings.end(),
                                   {absl::StrCat("security.trusted_fabric=", trusted ? "true" : "false"),
                                    absl::StrCat("daemon.nccl=", TENSORCAST_NCCL_STAND_IN),
                                    "daemon.peer_timeout=4s", "daemon.staging_buffers=4"});
    for (int node = 0; node <= kNodes; ++node) {
      std::vector<std::string> settings = {absl::StrCat("daemon.host_id=host-", node)};
      std::vector<std::string> gpus;
      for (int gpu = 0; gpu < kGpus; ++gpu) gpus.push_back(absl::StrCat(node * kGpus + gpu));
      if (node == kNodes) {
        settings.push_back("daemon.device_runtime=none");
        if (slowly) settings.push_back("daemon.limits.send=12MiB");
      }
      options.settings_of_daemon.push_back(settings);
      options.daemon_environments.push_back({{"CUDA_VISIBLE_DEVICES", absl::StrJoin(gpus, ",")}});
    }
    StartCluster(options);
    if (HasFatalFailure()) return;
    model_ = MakeModel("model.safetensors", kModelBytes);
    TC_ASSERT_OK(client(kNodes).Import(Context(), model_, {.key = "m"}).status());
    for (int node = 0; node < kNodes; ++node) {
      TC_ASSERT_OK_AND_ASSIGN(admins_.emplace_back(),
                              client::AdminClient::Connect(cluster_->addresses(node).unix_socket));
    }
    if (trusted) {
      ASSERT_TRUE(Eventually([this] {
        const auto cluster = admins_[0]->GetClusterStatus(Context());
        return cluster.ok() && std::ranges::count_if(cluster->nodes(), [](const v1::Node& node) {
                                 return !node.nccl_version().empty();
                               }) == kNodes;
      })) << "not all can broadcast";
    }
  }
  CommandResult Replicate(const std::string& lane) {
    std::vector<std::string> to;
    for (int node = 0; node < kNodes; ++node) to.push_back(absl::StrCat("node-", node, ":gpu:all"));
    return RunCommand({"replicate", "m", "--to", absl::StrJoin(to, ","), "--lane", lane, "--daemon",
                       cluster_->addresses(kNodes).unix_socket});
  }
  // Calls `disturb` once every node has bytes of a broadcast and wants more.
  void ReplicateAnd(const std::function<void()>& disturb) {
    CommandResult result;
    std::thread command([&] { result = Replicate("nccl"); });
    const bool begun = Eventually([this] {
      for (int node = 0; node < kNodes; ++node) {
        if (BroadcastAt(node) == 0) return false;
      }
      return true;
    });
    if (begun) disturb();
    command.join();
    EXPECT_TRUE(begun);
    EXPECT_EQ(result.exit_code, 0) << result.output;
  }
  // Bytes that came so, to transfers that run or have ended.
  uint64_t BroadcastAt(int node) {
    const auto status = admins_[node]->GetStatus(Context());
    if (!status.ok()) return 0;
    uint64_t bytes = 0;
    for (const auto* transfers : {&status->running_transfers(), &status->recent_transfers()}) {
      for (const v1::TransferReport& transfer : *transfers) {
        for (const v1::SourceReport& source : transfer.sources()) {
          bytes += source.lane() == kNcclLane ? source.bytes() : 0;
        }
      }
    }
    return bytes;
  }
  pid_t HelperOf(int node) {
    const std::vector<pid_t> helpers = HelpersOf(cluster_->daemon(node).pid());
    return helpers.empty() ? -1 : helpers.front();
  }
  void ExpectThere(int node) {
    for (int gpu = 0; gpu < kGpus; ++gpu) {
      TC_ASSERT_OK_AND_ASSIGN(const auto fresh, NewClient(node));
      TC_ASSERT_OK_AND_ASSIGN(const auto replica,
                              fresh->Get(Context(), "m", {.location = absl::StrCat("gpu:", gpu)}));
      EXPECT_FALSE(replica->transfer().has_value()) << "it had to be brought";
      TC_ASSERT_OK(Compare(*replica, model_).status());
    }
  }
  // All GPUs have it, and all but the root by the broadcast.
  void ExpectBroadcast() {
    uint64_t broadcast = 0;
    for (int node = 0; node < kNodes; ++node) {
      ExpectThere(node);
      broadcast += BroadcastAt(node);
    }
    EXPECT_GE(broadcast, (kNodes * kGpus - 1) * kModelBytes);
  }
  // The memory can go: no process has it open, or the stand-in would have ended the daemon.
  void ExpectNothingLeft() {
    const auto removed = RunCommand({"rm", "m", "--force", "--daemon", cluster_->addresses(0).unix_socket});
    EXPECT_EQ(removed.exit_code, 0) << removed.output;
    for (int node = 0; node < kNodes; ++node) {
      EXPECT_TRUE(Eventually([&] {
        const auto status = admins_[node]->GetStatus(Context());
        return status.ok() && std::ranges::all_of(status->pools(), [](const v1::Pool& pool) {
                 return pool.location().kind() != v1::LOCATION_KIND_GPU || pool.used_bytes() == 0;
               });
      })) << "node "
          << node;
      EXPECT_LE(HelpersOf(cluster_->daemon(node).pid()).size(), 1u);
    }
  }

  std::string model_;
  std::vector<std::unique_ptr<client::AdminClient>> admins_;  // of the nodes with GPUs
};

TEST_F(WideBroadcast, ReplicateWithNccl_BroadcastsToAllGpusOfFourNodes) {
  Start(/*slowly=*/false);
  if (HasFatalFailure()) return;
  const CommandResult result = Replicate("nccl");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  ExpectBroadcast();
  ExpectNothingLeft();
}

TEST_F(WideBroadcast, ReplicateLargeModelToAll_BroadcastsByDefault) {
  Start(/*slowly=*/false);
  if (HasFatalFailure()) return;
  const CommandResult result = RunCommand({"replicate", "m", "--all", "--device", "gpu:all", "--daemon",
                                           cluster_->addresses(kNodes).unix_socket});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  ExpectBroadcast();
  ExpectNothingLeft();
}

TEST_F(WideBroadcast, BroadcastHelperKilled_RestIsPulled) {
  Start(/*slowly=*/true);
  if (HasFatalFailure()) return;
  ReplicateAnd([this] { EXPECT_EQ(kill(HelperOf(2), SIGKILL), 0); });
  for (int node = 0; node < kNodes; ++node) ExpectThere(node);
  ExpectNothingLeft();
}

TEST_F(WideBroadcast, DaemonKilledInBroadcast_RestIsPulledThereToo) {
  Start(/*slowly=*/true);
  if (HasFatalFailure()) return;
  pid_t helper = -1;
  ReplicateAnd([&] {
    helper = HelperOf(2);
    EXPECT_EQ(kill(helper, SIGSTOP), 0);
    TC_ASSERT_OK(cluster_->daemon(2).Signal(SIGKILL));
    TC_ASSERT_OK(cluster_->daemon(2).Wait(SteadyNow() + kStepTimeout).status());
    EXPECT_TRUE(Eventually([&] { return kill(helper, 0) != 0; }))
        << "it ends with its daemon, stopped as it is";
    TC_ASSERT_OK(cluster_->RestartDaemon(2));
  });
  for (int node = 0; node < kNodes; ++node) ExpectThere(node);
  ExpectNothingLeft();
}

TEST_F(WideBroadcast, WithoutTrustedFabric_BroadcastIsRefused) {
  Start(/*slowly=*/false, /*trusted=*/false);
  if (HasFatalFailure()) return;
  const CommandResult refused = Replicate("nccl");
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.output, HasSubstr("security.trusted_fabric: true"));
  const CommandResult result = Replicate("auto");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  ExpectThere(3);
}

}  // namespace
}  // namespace tensorcast
