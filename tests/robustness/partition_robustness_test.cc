// Partitions between hosts (network.h): a cut is a link set down.
#include <gmock/gmock.h>

#include <atomic>
#include <cstdlib>

#include "tests/robustness/robustness_test_base.h"
#include "tools/workshop/cluster/network.h"

namespace tensorcast {
namespace {

constexpr int kNodes = 2;

class Partition : public RobustnessTest {
 protected:
  void StartOnNetwork() {
    absl::StatusOr<std::unique_ptr<Network>> network = Network::Make(kNodes);
    if (!network.ok()) GTEST_SKIP() << network.status();
    network_ = *std::move(network);
    ClusterOptions options = FastOptions();
    network_->Use(options);
    StartRobustCluster(options);
  }

  // Waits until the global store has given node 0 up: it offers no replica of the artifact any more.
  absl::Status AwaitGivenUp(const std::string& artifact_id) { return AwaitReplicas(1, artifact_id, 0); }

  // A cut lasts until everything that follows from it was seen; by hand it can be made to last as real ones
  // do (TENSORCAST_CUT_FOR=60s).
  static absl::Duration CutFor() {
    const char* text = std::getenv("TENSORCAST_CUT_FOR");
    absl::Duration duration = absl::ZeroDuration();
    if (text != nullptr) {
      EXPECT_TRUE(absl::ParseDuration(text, &duration)) << text;
    }
    return duration;
  }

  std::unique_ptr<Network> network_;
};

TEST_F(Partition, PartitionedNode_ServesItsOwnClientsAndRejoins) {
  ASSERT_NO_FATAL_FAILURE(StartOnNetwork());
  if (IsSkipped()) return;
  const std::string model = MakeModel("model.safetensors", 20 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model));
  TC_ASSERT_OK(client(1).Get(Context(), "m", {}).status());
  TC_ASSERT_OK(DropReplicas(1, put.artifact_id));
  TC_ASSERT_OK(invariants().AwaitWhole(Soon()));
  TC_ASSERT_OK(invariants().RecordBaseline(Soon()));

  TC_ASSERT_OK(network_->Cut(0));
  TC_ASSERT_OK(AwaitGivenUp(put.artifact_id));
  TC_ASSERT_OK_AND_ASSIGN(auto own, client(0).Get(Context(), put.artifact_id, {}));
  TC_ASSERT_OK(Compare(*own, model).status());
  own.reset();
  // It may come back with its copy, so no client is told that there is none.
  const auto other = client(1).Get(Context(absl::Seconds(3)), "m", {});
  // The last of its tries may be under way when its time is over.
  EXPECT_TRUE(absl::IsUnavailable(other.status()) || absl::IsDeadlineExceeded(other.status()))
      << other.status();
  EXPECT_THAT(std::string(other.status().message()), testing::HasSubstr("node-0, which has a copy"));

  absl::SleepFor(CutFor());
  TC_ASSERT_OK(network_->Heal(0));
  TC_ASSERT_OK(invariants().AwaitWhole(Soon()));
  TC_ASSERT_OK(AwaitReplicas(1, put.artifact_id, 1));
  TC_ASSERT_OK(invariants().CheckAcknowledged(Soon()));
  TC_ASSERT_OK(client(1).Get(Context(), "m", {}).status());
  TC_ASSERT_OK(invariants().VerifyReplicas(Soon()));
  TC_ASSERT_OK(DropReplicas(1, put.artifact_id));
  TC_ASSERT_OK(invariants().AwaitBaseline(Soon()));
}

TEST_F(Partition, NetworkCutDuringTransfer_TransferEndsAndLeavesNothing) {
  ASSERT_NO_FATAL_FAILURE(StartOnNetwork());
  if (IsSkipped()) return;
  const std::string model = MakeModel("model.safetensors", 120 << 20);
  TC_ASSERT_OK_AND_ASSIGN(const auto put, Import(0, "m", model));
  TC_ASSERT_OK(invariants().AwaitWhole(Soon()));
  TC_ASSERT_OK(invariants().RecordBaseline(Soon()));
  std::atomic<bool> cut = false;
  client::GetOptions get;
  get.on_progress = [&](const TransferProgress& progress) {
    if (progress.bytes_done > 0 && !cut.exchange(true)) network_->Cut(0).IgnoreError();
  };
  // Ends by itself, whether with the bytes (the cut came too late) or with an error.
  const auto replica = client(1).Get(Context(absl::Seconds(30)), "m", get);
  if (!replica.ok()) {
    EXPECT_FALSE(absl::IsDeadlineExceeded(replica.status())) << replica.status();
  } else {
    TC_ASSERT_OK(Compare(**replica, model).status());
  }
  if (!cut) TC_ASSERT_OK(network_->Cut(0));
  TC_ASSERT_OK(invariants().Await(1, Soon(), [](const v1::GetStatusResponse& status) -> absl::Status {
    if (status.active_transfers() == 0) return absl::OkStatus();
    return absl::InternalError("the transfer still runs");
  }));
  absl::SleepFor(CutFor());
  TC_ASSERT_OK(network_->Heal(0));
  TC_ASSERT_OK(invariants().AwaitWhole(Soon()));
  TC_ASSERT_OK(client(1).Get(Context(), "m", {}).status());
  TC_ASSERT_OK(invariants().VerifyReplicas(Soon()));
}

}  // namespace
}  // namespace tensorcast
