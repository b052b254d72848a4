#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store::waits_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Waits : public DirectoryTest {
 protected:
  void SetUp() override {
    for (const char* node : {"a", "b", "c"}) Register(node);
    Publish("x");
  }
  static ReplicaInfo Filling(const std::string& id) {
    return SomeReplica(id, "x", LocationKind::kCpu, ReplicaState::kFilling);
  }
  static bool MustWait(const GrantOffer& offer) {
    return offer.granted.empty() && offer.retry_after > absl::ZeroDuration();
  }
  // As a receiver that asks again whenever it is told to. True when it is still told to at last.
  bool StillWaitsAfter(const std::string& receiver, int times) {
    for (int i = 0; i < times; ++i) {
      const GrantOffer offer = Request(receiver, "x");
      if (!MustWait(offer)) return false;
      now_ += offer.retry_after;
    }
    return true;
  }
  GrantOffer RequestAgain(const std::string& receiver, const std::string& slow) {
    auto offer = directory_.transfers().RequestGrant(
        {.receiver = Id(receiver), .artifact_id = "x", .destination = {}, .slow_replicas = {slow}}, now_);
    EXPECT_TRUE(offer.ok()) << offer.status();
    return offer.value_or(GrantOffer{});
  }
};

TEST_F(Waits, FillingReplica_IsWaitedForAndGrantedWhenReady) {
  Update("a", {Filling("ra")});
  const GrantOffer offer = Request("b", "x");
  EXPECT_TRUE(MustWait(offer));
  EXPECT_THAT(offer.waiting_for, ElementsAre(HasSubstr("name-a")));
  Update("a", {SomeReplica("ra", "x")});
  EXPECT_EQ(Offered("b", "x"), "ra");
}

TEST_F(Waits, AllocatingReplica_IsWaitedFor) {
  Update("a", {SomeReplica("ra", "x", LocationKind::kCpu, ReplicaState::kAllocating)});
  EXPECT_TRUE(MustWait(Request("b", "x")));
}

TEST_F(Waits, ReplicaNotReportedYet_IsWaitedForButNotForLong) {
  Update("a", {SomeReplica("ra", "x")});
  ASSERT_FALSE(Request("b", "x").granted.empty());
  Update("a", {SomeReplica("ra", "x", LocationKind::kCpu, ReplicaState::kGone)});
  EXPECT_THAT(Request("c", "x").waiting_for, ElementsAre(HasSubstr("begins to fill on node name-b")));
  EXPECT_FALSE(MustWait(Request("b", "x")));
  // It failed before it was ever reported as filling.
  Update("b", {SomeReplica("rb", "x", LocationKind::kCpu, ReplicaState::kFailed)});
  EXPECT_FALSE(MustWait(Request("c", "x")));
}

TEST_F(Waits, GrantOfVanishedReplica_IsWaitedForBriefly) {
  Update("a", {SomeReplica("ra", "x")});
  ASSERT_FALSE(Request("b", "x").granted.empty());
  Update("a", {SomeReplica("ra", "x", LocationKind::kCpu, ReplicaState::kGone)});
  EXPECT_TRUE(MustWait(Request("c", "x")));
  now_ += absl::Seconds(6);
  EXPECT_FALSE(MustWait(Request("c", "x")));
}

TEST_F(Waits, Wait_EndsWhenFillingReplicaFails) {
  Update("a", {Filling("ra")});
  ASSERT_TRUE(MustWait(Request("b", "x")));
  Update("a", {SomeReplica("ra", "x", LocationKind::kCpu, ReplicaState::kFailed)});
  const GrantOffer offer = Request("b", "x");
  EXPECT_FALSE(MustWait(offer));
  EXPECT_EQ(offer.no_source_reason, "no other node has a replica");
}

TEST_F(Waits, OwnFillingReplica_IsNotWaitedFor) {
  Update("a", {Filling("ra")});
  EXPECT_FALSE(MustWait(Request("a", "x")));
}

TEST_F(Waits, ReplicasThatWaitForEachOther_StopWaiting) {
  Update("a", {Filling("ra")});
  Update("b", {Filling("rb")});
  Update("c", {Filling("rc")});
  bool ended = false;
  for (int round = 0; round < 20 && !ended; ++round) {
    for (const char* node : {"a", "b", "c"}) ended |= !MustWait(Request(node, "x"));
    now_ += absl::Milliseconds(500);
  }
  EXPECT_TRUE(ended);
}

TEST_F(Waits, NodeThatWaitsForReceiver_IsNotWaitedFor) {
  Update("a", {Filling("ra")});
  EXPECT_THAT(Request("b", "x").waiting_for, ElementsAre(HasSubstr("name-a")));
  Update("b", {Filling("rb")});
  EXPECT_FALSE(MustWait(Request("a", "x")));
  Update("c", {Filling("rc")});
  EXPECT_THAT(Request("a", "x").waiting_for, ElementsAre(HasSubstr("name-c")));
  EXPECT_THAT(Request("c", "x").waiting_for, IsEmpty()) << "both of the others wait for it";
}

TEST_F(Waits, FillingReplicaWithSource_IsWaitedForByManyReceivers) {
  Register("root");
  Update("root", {SomeReplica("r", "x")});
  Update("a", {Filling("ra")});
  const GrantOffer granted = Request("a", "x");
  ASSERT_FALSE(granted.granted.empty());
  // The root holds it no longer; a has its bytes, or will have them by what it has open.
  Update("root", {SomeReplica("r", "x", LocationKind::kCpu, ReplicaState::kGone)});
  Update("b", {Filling("rb")});
  Update("c", {Filling("rc")});
  EXPECT_TRUE(StillWaitsAfter("b", 50));
  EXPECT_TRUE(StillWaitsAfter("c", 50));
}

TEST_F(Waits, Wait_ContinuesOnFillingReplicaWhenSourceUnreachable) {
  NodeFacts remote = SomeNode("remote");
  remote.lanes = {"rdma"};
  Register(remote);
  NodeFacts between = SomeNode("between");
  between.lanes = {"rdma", "ucx"};
  Register(between);
  Update("remote", {Filling("r")});
  Update("between", {Filling("rb")});
  ASSERT_TRUE(StillWaitsAfter("between", 10));
  EXPECT_THAT(Request("a", "x").waiting_for, ElementsAre(HasSubstr("name-between")));
  Update("remote", {SomeReplica("r", "x", LocationKind::kCpu, ReplicaState::kFailed)});
  now_ += absl::Seconds(5);
  EXPECT_FALSE(MustWait(Request("a", "x")));
}

TEST_F(Waits, FillingReplicaWithoutSharedLane_IsNotWaitedFor) {
  NodeFacts other = SomeNode("other");
  other.lanes = {"carrier pigeon"};
  Register(other);
  Update("a", {Filling("ra")});
  EXPECT_FALSE(MustWait(Request("other", "x")));
  auto forced = directory_.transfers().RequestGrant(
      {.receiver = Id("b"), .artifact_id = "x", .destination = {}, .required_lane = "local"}, now_);
  ASSERT_TRUE(forced.ok());
  EXPECT_FALSE(MustWait(*forced)) << "they are on different hosts";
}

TEST_F(Waits, SlowSource_IsOfferedAgainWhenNoOtherIsLeft) {
  Update("a", {SomeReplica("ra", "x")});
  const GrantOffer again = RequestAgain("c", "ra");
  ASSERT_FALSE(again.granted.empty());
  EXPECT_EQ(again.granted.front().grant.replica_id, "ra");
  Update("b", {SomeReplica("rb", "x", LocationKind::kDisk)});
  const GrantOffer fresh = RequestAgain("c", "ra");
  ASSERT_FALSE(fresh.granted.empty());
  EXPECT_EQ(fresh.granted.front().grant.replica_id, "rb") << "a slower place, but not tried yet";
}

TEST_F(Waits, NodeWithoutInventory_IsWaitedForBriefly) {
  ASSERT_TRUE(directory_.RegisterNode(SomeNode("late"), {}, now_).ok());
  EXPECT_THAT(Request("b", "x").waiting_for, ElementsAre(HasSubstr("name-late")));
  now_ += options_.membership.node_ttl + absl::Seconds(1);
  EXPECT_FALSE(MustWait(Request("b", "x")));
}

TEST_F(Waits, RestartedStore_WaitsForNodesUpToTheirTtl) {
  Directory restarted(options_, &secrets_);
  restarted.Load({.artifacts = {{.artifact_id = "x"}}, .keys = {}}, now_);
  ASSERT_TRUE(restarted.RegisterNode(SomeNode("b"), {}, now_).ok());
  ASSERT_TRUE(restarted.ReconcileInventory(Id("b"), 0, {}, now_).ok());
  const GrantRequest request{.receiver = Id("b"), .artifact_id = "x", .destination = {}};
  EXPECT_TRUE(MustWait(*restarted.transfers().RequestGrant(request, now_)));
  now_ += options_.membership.node_ttl;
  EXPECT_FALSE(MustWait(*restarted.transfers().RequestGrant(request, now_)));

  Directory alone({.membership = {.awaits_nodes = false}}, &secrets_);
  alone.Load({.artifacts = {{.artifact_id = "x"}}, .keys = {}}, now_);
  ASSERT_TRUE(alone.RegisterNode(SomeNode("b"), {}, now_).ok());
  ASSERT_TRUE(alone.ReconcileInventory(Id("b"), 0, {}, now_).ok());
  EXPECT_FALSE(MustWait(*alone.transfers().RequestGrant(request, now_)));
}

TEST_F(Waits, NodeWithCopyThatIsAway_IsNamedButNotWaitedFor) {
  Update("a", {SomeReplica("ra", "x")});
  now_ += options_.membership.node_ttl + absl::Seconds(1);
  Beat("b");
  directory_.Tick(now_);
  GrantOffer offer = Request("b", "x");
  EXPECT_FALSE(MustWait(offer));
  EXPECT_THAT(offer.waiting_for, ElementsAre(HasSubstr("name-a, which has a copy")));
  // Back without it.
  Register("a", 2);
  EXPECT_THAT(Request("b", "x").waiting_for, IsEmpty());
}

TEST_F(Waits, StoppedDaemon_IsNamedOnlyForItsPackedFiles) {
  Publish("y");
  Update("a", {SomeReplica("ra", "x", LocationKind::kDisk), SomeReplica("ry", "y")});
  ASSERT_TRUE(directory_.ReconcileInventory(Id("a"), sequence_["a"], {}, now_).ok());
  EXPECT_THAT(Request("b", "x").waiting_for, ElementsAre(HasSubstr("name-a")));
  EXPECT_THAT(Request("b", "y").waiting_for, IsEmpty());
  Beat("a");
  EXPECT_THAT(Request("b", "x").waiting_for, IsEmpty()) << "it is alive and has nothing";
}

}  // namespace
}  // namespace tensorcast::global_store::waits_test
