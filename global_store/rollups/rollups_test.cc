#include "global_store/rollups/rollups.h"

#include <algorithm>

#include "global_store/directory/directory_test_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::global_store::rollups_test {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class RollupsTest : public ::testing::Test {
 protected:
  static NodeFacts Node(const std::string& name, const std::string& zone, const std::string& rack) {
    NodeFacts node;
    node.node_id = "id-" + name;
    node.name = name;
    node.labels = {{"zone", zone}, {"rack", rack}};
    return node;
  }
  void Report(const NodeFacts& node, ReplicaState state, uint64_t bytes = 0) {
    ReplicaInfo replica;
    replica.id = "r";
    replica.artifact_id = "tc2:a";
    replica.location = {LocationKind::kCpu};
    replica.state = state;
    replica.image_bytes = bytes;
    rollups_.Note(node, {replica}, now_);
  }
  void Transfer(const NodeFacts& node, absl::Duration took, uint64_t bytes) {
    Report(node, ReplicaState::kFilling);
    now_ += took;
    Report(node, ReplicaState::kReady, bytes);
  }

  Rollups rollups_;
  SteadyTime now_ = SteadyNow();
};

TEST_F(RollupsTest, EndedTransfers_GivePercentilesPerRack) {
  for (int i = 1; i <= 20; ++i) Transfer(Node("n" + std::to_string(i), "a", "r1"), absl::Seconds(i), 1000);
  Transfer(Node("m", "b", "r1"), absl::Seconds(2), 4000);
  const std::vector<PlaceTransfers> places = rollups_.Transfers(now_);
  ASSERT_THAT(places, SizeIs(2));
  EXPECT_EQ(places[0].place.zone, "a");
  EXPECT_EQ(places[0].seconds, (std::array<double, 3>{10, 19, 20}));
  EXPECT_EQ(places[0].bytes_per_second[2], 50) << "the slowest";
  EXPECT_EQ(places[1].bytes_per_second[0], 2000);
}

TEST_F(RollupsTest, OldTransfers_AreForgotten) {
  Transfer(Node("n", "a", "r"), absl::Seconds(1), 1);
  now_ += absl::Minutes(16);
  EXPECT_THAT(rollups_.Transfers(now_), IsEmpty());
  EXPECT_THAT(rollups_.Stragglers(now_), IsEmpty());
}

TEST_F(RollupsTest, Stragglers_AreTenSlowestIncludingRunning) {
  for (int i = 1; i <= 20; ++i) Transfer(Node("n" + std::to_string(i), "a", "r"), absl::Seconds(i), 1);
  Report(Node("stuck", "a", "r"), ReplicaState::kFilling);
  now_ += absl::Minutes(5);
  const std::vector<Straggler> slow = rollups_.Stragglers(now_);
  ASSERT_THAT(slow, SizeIs(10));
  EXPECT_EQ(slow[0].node, "stuck");
  EXPECT_EQ(slow[0].seconds, 300);
  EXPECT_EQ(slow[1].node, "n20");
  rollups_.NoteNodeGone("id-stuck");
  EXPECT_EQ(rollups_.Stragglers(now_)[0].node, "n20") << "a node that is gone does not count";
}

TEST_F(RollupsTest, ManyRacks_AreBoundedAsOther) {
  for (int i = 0; i < 400; ++i) {
    Transfer(Node("n" + std::to_string(i), "a", "r" + std::to_string(i)), absl::Seconds(1), 1);
  }
  const std::vector<PlaceTransfers> places = rollups_.Transfers(now_);
  EXPECT_THAT(places, SizeIs(257));
  EXPECT_TRUE(std::ranges::any_of(places, [](const auto& one) { return one.place.rack == "other"; }));
}

class RolloutTest : public DirectoryTest {
 protected:
  std::vector<Rollout> Look() {
    return directory_.rollups().Rollouts(directory_.catalog(), directory_.inventory(), wall_now());
  }
};

TEST_F(RolloutTest, NodesBehind_AreCountedUntilEachHasNewVersion) {
  for (const char* node : {"a", "b"}) Register(node);
  for (const char* artifact : {"tc2:one", "tc2:two"}) Publish(artifact);
  ASSERT_TRUE(Bind("llama/prod", "tc2:one").ok());
  Update("a", {SomeReplica("r1", "tc2:one")});
  Update("b", {SomeReplica("r1", "tc2:one")});
  ASSERT_THAT(Look(), SizeIs(1));
  EXPECT_EQ(Look()[0].current, 2u);
  ASSERT_TRUE(Bind("llama/prod", "tc2:two").ok());
  Update("a", {SomeReplica("r2", "tc2:two")});
  now_ += absl::Seconds(30);
  Rollout rollout = Look()[0];
  EXPECT_EQ(rollout.current, 1u);
  EXPECT_EQ(rollout.one_behind, 1u);
  EXPECT_EQ(rollout.took, absl::Seconds(30));
  Update("b", {SomeReplica("r2", "tc2:two")});
  EXPECT_EQ(Look()[0].one_behind, 0u);
  now_ += absl::Seconds(30);
  EXPECT_EQ(Look()[0].took, absl::Seconds(30)) << "it has ended";
}

}  // namespace
}  // namespace tensorcast::global_store::rollups_test
