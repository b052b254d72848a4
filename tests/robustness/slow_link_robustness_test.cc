// Links on which one chunk takes longer than `peer_timeout`: being slow, or one of many, is not a failure as
// long as bytes arrive.
#include <gmock/gmock.h>
#include <signal.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/steady_time.h"
#include "tests/robustness/robustness_test_base.h"
#include "tools/workshop/cluster/network.h"

namespace tensorcast {
namespace {

constexpr uint64_t kModelBytes = 12 << 20;

class SlowLink : public RobustnessTest {
 protected:
  // Node 0 has the model, in chunks of 1 MiB, on a link of this rate. Its own `peer_timeout`, which ends
  // connections to a peer that takes nothing, is longer than any wait here; the receivers' is the one given.
  void StartWithSlowSource(int receivers, uint64_t bits_per_second, absl::Duration peer_timeout) {
    absl::StatusOr<std::unique_ptr<Network>> network = Network::Make(receivers + 1);
    if (!network.ok()) GTEST_SKIP() << network.status();
    network_ = *std::move(network);
    ClusterOptions options = FastOptions();
    options.daemon_settings.push_back(
        absl::StrCat("daemon.peer_timeout=", absl::FormatDuration(peer_timeout)));
    network_->Use(options);
    options.settings_of_daemon[0].push_back("daemon.peer_timeout=30s");
    ASSERT_NO_FATAL_FAILURE(StartRobustCluster(options));
    model_ = MakeModel("model.safetensors", kModelBytes);
    TC_ASSERT_OK_AND_ASSIGN(put_, Import(0, "m", model_));
    const absl::Status slow = network_->Throttle(0, bits_per_second);
    if (!slow.ok()) GTEST_SKIP() << "links cannot be made slow here: " << slow;
  }

  std::unique_ptr<Network> network_;
  std::string model_;
  client::PutResult put_;
};

// 2.5 MB/s: the four chunks that are asked for at once take 1.7 seconds.
TEST_F(SlowLink, OneReceiverOnSlowLink_KeepsItsSource) {
  ASSERT_NO_FATAL_FAILURE(StartWithSlowSource(1, 20'000'000, absl::Seconds(1)));
  if (IsSkipped()) return;
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, client(1).Get(Context(), "m", {}));
  TC_ASSERT_OK(Compare(*replica, model_).status());
  EXPECT_EQ(replica->transfer()->refetched_chunks, 0u);
  EXPECT_TRUE(replica->transfer()->changes.empty());
}

// It may lack a core for longer than peer_timeout. What arrived meanwhile waits for it: the source was not
// silent, the receiver was away.
TEST_F(SlowLink, ReceiverStoppedForAWhile_KeepsItsSource) {
  ASSERT_NO_FATAL_FAILURE(StartWithSlowSource(1, 20'000'000, absl::Seconds(1)));
  if (IsSkipped()) return;
  absl::Notification under_way;
  client::GetOptions options;
  options.on_progress = [&](const TransferProgress& progress) {
    if (progress.bytes_done > 0 && !under_way.HasBeenNotified()) under_way.Notify();
  };
  const auto get = client(1).StartGet(Context(), "m", options);
  ASSERT_TRUE(under_way.WaitForNotificationWithTimeout(kStepTimeout));
  TC_ASSERT_OK(cluster_->daemon(1).Signal(SIGSTOP));
  EXPECT_TRUE(absl::IsDeadlineExceeded(get->Wait(SteadyNow() + absl::Seconds(2)).status()));
  TC_ASSERT_OK(cluster_->daemon(1).Signal(SIGCONT));
  TC_ASSERT_OK_AND_ASSIGN(const auto replica, get->Wait(Soon()));
  TC_ASSERT_OK(Compare(*replica, model_).status());
  EXPECT_EQ(replica->transfer()->refetched_chunks, 0u);
  EXPECT_TRUE(replica->transfer()->changes.empty());
}

// 3.75 MB/s: when each of them asks it for four chunks, the last of these takes 4.5 seconds.
TEST_F(SlowLink, ManyReceiversOnSlowLink_KeepTheirSource) {
  constexpr int kReceivers = 4;
  ASSERT_NO_FATAL_FAILURE(StartWithSlowSource(kReceivers, 30'000'000, absl::Seconds(3)));
  if (IsSkipped()) return;
  std::vector<std::unique_ptr<client::PendingGet>> gets;
  for (int node = 1; node <= kReceivers; ++node) gets.push_back(client(node).StartGet(Context(), "m", {}));
  for (const auto& get : gets) {
    TC_ASSERT_OK_AND_ASSIGN(const auto replica, get->Wait(Soon()));
    TC_ASSERT_OK(Compare(*replica, model_).status());
    for (const SourceChange& change : replica->transfer()->changes) {
      ADD_FAILURE() << change.from.name << " was given up: " << change.status;
    }
  }
}

}  // namespace
}  // namespace tensorcast
