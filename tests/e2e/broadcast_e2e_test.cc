// A model for several GPUs of a node comes once over the network and is broadcast among them by the node's
// helper process, which may die and hang.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/testing/eventually.h"
#include "tests/e2e/e2e_test_base.h"
#include "tests/e2e/helper_processes.h"
#include "tests/stand_ins/cuda/copy_engines.h"

namespace tensorcast {
namespace {

using testing::Eventually;

constexpr int kReceiver = 1;
constexpr uint64_t kModelBytes = uint64_t{24} << 20;

class Broadcast : public E2eTest {
 protected:
  // Node 0 has the model, and sends it slowly; node 1 has four GPUs.
  void StartWithModel() {
    ClusterOptions options = DefaultOptions();
    options.settings_of_daemon = {
        {"daemon.host_id=here", "daemon.limits.send=24MiB"},
        {"daemon.host_id=there", absl::StrCat("daemon.nccl=", TENSORCAST_NCCL_STAND_IN),
         "daemon.peer_timeout=2s", "daemon.staging_buffers=8"}};
    options.daemon_environments = {
        {}, {{"CUDA_VISIBLE_DEVICES", "2,3,4,5"}, {stand_ins::kTimelineVariable, timeline_path()}}};
    StartCluster(options);
    if (HasFatalFailure()) return;
    model_ = MakeModel("model.safetensors", kModelBytes);
    TC_ASSERT_OK(client(0).Import(Context(), model_, {.key = "m"}).status());
    ASSERT_TRUE(Eventually([this] { return helper().has_value(); }));
  }

  void StartGets() {
    for (int gpu = 0; gpu < 4; ++gpu) {
      client::GetOptions options{.location = absl::StrCat("gpu:", gpu)};
      options.on_progress = [this](const TransferProgress& progress) {
        for (const SourceReport& source : progress.sources) {
          if (source.source.lane == kNcclLane && source.bytes > 0) seen_ = true;
        }
      };
      gets_.push_back(client(kReceiver).StartGet(Context(), "m", options));
    }
  }
  // A get has bytes that were broadcast; since the model comes slowly it wants more.
  void AwaitBroadcast() {
    ASSERT_TRUE(Eventually([this] { return seen_.load(); }));
  }
  std::optional<pid_t> helper() {
    const std::vector<pid_t> helpers = HelpersOf(cluster_->daemon(kReceiver).pid());
    return helpers.empty() ? std::nullopt : std::optional(helpers.front());
  }
  // All have the model, and one copy of it came over the network.
  void ExpectAllRight() {
    uint64_t image_bytes = 0;
    uint64_t over_network = 0;
    for (const auto& get : gets_) {
      TC_ASSERT_OK_AND_ASSIGN(const auto replica, get->Wait(SteadyNow() + kStepTimeout));
      TC_ASSERT_OK(Compare(*replica, model_).status());
      ASSERT_TRUE(replica->transfer().has_value());
      image_bytes = replica->transfer()->bytes;
      for (const SourceReport& source : replica->transfer()->sources) {
        over_network += source.source.lane == "tcp" ? source.bytes : 0;
        broadcast_ += source.source.lane == kNcclLane ? source.bytes : 0;
        lost_ += source.source.lane == kNcclLane && source.loss.has_value() ? 1 : 0;
      }
    }
    EXPECT_EQ(over_network, image_bytes);
    EXPECT_GT(broadcast_, 0u);
  }
  // Once no client holds them the replicas can go, and their memory too: no other node has it open, or the
  // stand-in would have ended the daemon.
  void ExpectNothingLeft() {
    gets_.clear();
    const auto removed =
        RunCommand({"rm", "m", "--force", "--daemon", cluster_->addresses(kReceiver).unix_socket});
    EXPECT_EQ(removed.exit_code, 0) << removed.output;
    EXPECT_TRUE(Eventually([this] {
      const auto status = client(kReceiver).GetStatus(Context());
      return status.ok() && std::ranges::all_of(status->pools, [](const client::NodeStatus::Pool& pool) {
               return pool.location.kind != LocationKind::kGpu || pool.used_bytes == 0;
             });
    }));
    EXPECT_LE(HelpersOf(cluster_->daemon(kReceiver).pid()).size(), 1u);
  }

  // Of what the node's GPUs got nothing comes back but digests.
  void ExpectVerifiedOnTheGpus() {
    TC_ASSERT_OK_AND_ASSIGN(const auto timeline, stand_ins::ReadTimeline(timeline_path()));
    uint64_t to_host = 0;
    for (const stand_ins::TimelineEntry& copy : timeline) {
      to_host += copy.direction == CopyDirection::kToHost ? copy.bytes : 0;
    }
    EXPECT_GT(to_host, 0u);
    EXPECT_LT(to_host, kModelBytes / 1000);
  }
  std::string timeline_path() const { return absl::StrCat(directory_->path(), "/timeline"); }

  std::string model_;
  std::atomic<bool> seen_ = false;  // a broadcast
  std::vector<std::unique_ptr<client::PendingGet>> gets_;
  uint64_t broadcast_ = 0;  // bytes
  int lost_ = 0;            // receivers of a broadcast that ended before its time
};

TEST_F(Broadcast, GetsToSeveralGpusOfNode_BroadcastOneNetworkCopy) {
  StartWithModel();
  if (HasFatalFailure()) return;
  StartGets();
  ExpectAllRight();
  if (HasFatalFailure()) return;
  EXPECT_GE(broadcast_, 2 * kModelBytes);
  EXPECT_EQ(lost_, 0);
  ExpectVerifiedOnTheGpus();
  ExpectNothingLeft();
}

TEST_F(Broadcast, BroadcastHelperKilled_RestIsCopied) {
  StartWithModel();
  if (HasFatalFailure()) return;
  StartGets();
  AwaitBroadcast();
  if (HasFatalFailure()) return;
  const pid_t killed = helper().value();
  ASSERT_EQ(kill(killed, SIGKILL), 0);
  ExpectAllRight();
  if (HasFatalFailure()) return;
  EXPECT_GE(lost_, 2);
  EXPECT_NE(helper(), killed);
  ExpectNothingLeft();
}

}  // namespace
}  // namespace tensorcast
