// What the directory tells the log of rollouts.
#include <algorithm>

#include "global_store/directory/directory_test_fixture.h"
#include "global_store/rollouts/rollout_analysis.h"

namespace tensorcast::global_store {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class RolloutsOfDirectory : public DirectoryTest {
 protected:
  void SetUp() override {
    for (const char* node : {"seed", "b", "c"}) Register(node);
    Publish("x");
    Update("seed", {SomeReplica("r-seed", "x")});
  }
  // The node's transfer from its first request to the end of its grants.
  void Receive(const std::string& node, absl::Duration takes, uint64_t bytes) {
    const std::string replica = absl::StrCat("r-", node);
    Update(node, {SomeReplica(replica, "x", LocationKind::kCpu, ReplicaState::kFilling)});
    const GrantOffer offer = Request(node, "x");
    ASSERT_FALSE(offer.granted.empty());
    now_ += takes;
    Update(node, {SomeReplica(replica, "x")});
    for (const OfferedGrant& granted : offer.granted) {
      ASSERT_TRUE(directory_.transfers()
                      .CompleteGrant(Id(node), granted.grant.grant_id, GrantEnd::kSucceeded, false, now_,
                                     {.bytes = bytes, .transfer_id = absl::StrCat("t-", node)})
                      .ok());
    }
  }
  RolloutHop HopTo(const std::string& node) {
    const std::vector<RolloutHop> hops = directory_.rollouts().HopsOf("x");
    const auto found =
        std::ranges::find_if(hops, [&](const RolloutHop& hop) { return hop.receiver->id == node; });
    EXPECT_NE(found, hops.end());
    return found == hops.end() ? RolloutHop{} : *found;
  }
};

TEST_F(RolloutsOfDirectory, Transfer_IsRememberedWithItsSource) {
  const SteadyTime began = now_;
  Receive("b", absl::Seconds(3), 1000);
  const RolloutHop hop = HopTo("b");
  EXPECT_EQ(hop.receiver->name, "name-b");
  EXPECT_EQ(hop.source->name, "name-seed");
  EXPECT_EQ(hop.lane, "ucx");
  EXPECT_EQ(hop.bytes, 1000);
  EXPECT_EQ(hop.begun, began);
  EXPECT_EQ(hop.ended, began + absl::Seconds(3));
  EXPECT_EQ(hop.transfer_id, "t-b");
}

TEST_F(RolloutsOfDirectory, NodeThatGoes_FailsItsTransfer) {
  Update("b", {SomeReplica("r-b", "x", LocationKind::kCpu, ReplicaState::kFilling)});
  Request("b", "x");
  EXPECT_FALSE(HopTo("b").HasEnded());
  now_ += absl::Hours(1);
  directory_.Tick(now_);
  EXPECT_TRUE(HopTo("b").failed);
}

TEST_F(RolloutsOfDirectory, InventoryWithReadyReplica_EndsTransfer) {
  Request("b", "x");
  now_ += absl::Seconds(2);
  ASSERT_TRUE(directory_.ReconcileInventory(Id("b"), 5, {SomeReplica("r-b", "x")}, now_).ok());
  EXPECT_EQ(HopTo("b").ended, now_);
  EXPECT_FALSE(HopTo("b").failed);
}

TEST_F(RolloutsOfDirectory, InventoryWithoutReplica_FailsTransfer) {
  Request("b", "x");
  ASSERT_TRUE(directory_.ReconcileInventory(Id("b"), 5, {}, now_).ok());
  EXPECT_TRUE(HopTo("b").failed);
}

TEST_F(RolloutsOfDirectory, DeletedArtifact_TakesItsRolloutAlong) {
  Receive("b", absl::Seconds(1), 1);
  Delete("x");
  EXPECT_THAT(directory_.rollouts().HopsOf("x"), IsEmpty());
}

TEST_F(RolloutsOfDirectory, Analysis_NamesSlowReceiver) {
  Receive("b", absl::Seconds(1), 1000);
  Receive("c", absl::Seconds(9), 1000);
  const std::vector<RolloutHop> hops = directory_.rollouts().HopsOf("x");
  ASSERT_THAT(hops, SizeIs(2));
  const RolloutAnalysis analysis = AnalyzeRollout(hops, 1, now_);
  ASSERT_THAT(analysis.slowest, SizeIs(1));
  EXPECT_EQ(hops[analysis.slowest.front()].receiver->name, "name-c");
}

}  // namespace
}  // namespace tensorcast::global_store
