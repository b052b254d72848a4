#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store::nodes_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Nodes : public DirectoryTest {};

TEST_F(Nodes, Nodes_GetDifferentGrantKeys) {
  auto a = directory_.RegisterNode(SomeNode("a"), {}, now_);
  auto b = directory_.RegisterNode(SomeNode("b"), {}, now_);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(a->grant_key, b->grant_key);
}

TEST_F(Nodes, RepeatedRegistration_KeepsKeyAndReplicas) {
  Register("a");
  Publish("x");
  Update("a", {SomeReplica("r", "x")});
  const auto first = directory_.RegisterNode(SomeNode("a"), {}, now_);
  const auto again = directory_.RegisterNode(SomeNode("a"), {}, now_);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->grant_key, first->grant_key);
  EXPECT_EQ(directory_.counts().replicas, 1u);
  EXPECT_TRUE(Beat("a").inventory_wanted);
}

TEST_F(Nodes, NewIncarnation_DropsSoftStateOfPreviousOne) {
  Register("a");
  Register("b");
  Publish("x");
  Update("a", {SomeReplica("r", "x")});
  ASSERT_FALSE(Request("b", "x").granted.empty());
  ASSERT_TRUE(directory_.DrainNode("a", true).ok());

  auto registration = directory_.RegisterNode(SomeNode("a", 2), {}, now_);
  ASSERT_TRUE(registration.ok()) << registration.status();
  EXPECT_EQ(directory_.counts().replicas, 0u);
  EXPECT_EQ(directory_.counts().nodes, 2u);
  const std::vector<EndedGrant> ended = directory_.transfers().grants().TakeEnded();
  ASSERT_THAT(ended, SizeIs(1));
  EXPECT_EQ(ended[0].end, GrantEnd::kExpired);
  EXPECT_FALSE(directory_.membership().Find("a")->draining);
}

TEST_F(Nodes, RegisterNode_ChecksLabels) {
  NodeFacts facts = SomeNode("a");
  facts.labels = {{"zone", "a"}};
  ASSERT_TRUE(directory_.RegisterNode(facts, {}, now_).ok());
  EXPECT_EQ(directory_.membership().Find("a")->facts.labels, facts.labels);
  facts.labels = {{"zone", "a\n"}};
  const absl::Status refused = directory_.RegisterNode(facts, {}, now_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("value of a label"));
}

TEST_F(Nodes, NodeId_IsBoundToOneNameUntilForgotten) {
  const auto bind = [&](const NodeFacts& node) {
    const absl::StatusOr<DurableFacts> facts = directory_.membership().PrepareBindNode(node);
    if (facts.ok()) directory_.Apply(*facts, now_);
    return facts;
  };
  NodeFacts node = SomeNode("a");
  EXPECT_THAT(bind(node)->nodes, ElementsAre(NodeBinding{"a", "name-a"}));
  EXPECT_TRUE(bind(node)->empty()) << "it is bound already";
  node.name = "other";
  EXPECT_TRUE(absl::IsPermissionDenied(bind(node).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(directory_.membership().CheckBinding("a", "other")));
  EXPECT_TRUE(directory_.membership().CheckBinding("a", "name-a").ok());
  EXPECT_TRUE(directory_.membership().CheckBinding("b", "other").ok()) << "unbound";

  Register("a");
  EXPECT_TRUE(absl::IsFailedPrecondition(directory_.membership().PrepareForgetNode("a").status()))
      << "it is alive";
  EXPECT_TRUE(absl::IsNotFound(directory_.membership().PrepareForgetNode("b").status()));
  now_ += absl::Seconds(11);  // longer than a node may be silent
  directory_.Tick(now_);
  const absl::StatusOr<DurableFacts> forgotten = directory_.membership().PrepareForgetNode("a");
  ASSERT_TRUE(forgotten.ok()) << forgotten.status();
  directory_.Apply(*forgotten, now_);
  EXPECT_THAT(bind(node)->nodes, ElementsAre(NodeBinding{"a", "other"}));
}

TEST_F(Nodes, NameMovedToOtherNodeId_LeavesPreviousId) {
  directory_.Apply(*directory_.membership().PrepareBindNode(SomeNode("a")), now_);
  NodeFacts moved = SomeNode("b");
  moved.name = SomeNode("a").name;
  const absl::StatusOr<DurableFacts> facts = directory_.membership().PrepareBindNode(moved);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_THAT(facts->nodes, ElementsAre(NodeBinding{"a", ""}, NodeBinding{"b", "name-a"}));
  // Not while the other is alive.
  Register("a");
  EXPECT_TRUE(absl::IsAlreadyExists(directory_.membership().PrepareBindNode(moved).status()));
}

TEST_F(Nodes, CallsOfReplacedIncarnation_AreAborted) {
  Register("a", 5);
  const NodeIdentity old = Id("a", 4);
  EXPECT_TRUE(absl::IsAborted(directory_.RegisterNode(SomeNode("a", 4), {}, now_).status()));
  EXPECT_TRUE(absl::IsAborted(directory_.Heartbeat(old, {}, {}, 0, now_).status()));
  EXPECT_TRUE(absl::IsAborted(directory_.UpdateReplicas(old, 1, {}, now_).status()));
  EXPECT_TRUE(absl::IsAborted(directory_.ReconcileInventory(old, 1, {}, now_).status()));
  EXPECT_TRUE(absl::IsAborted(directory_.evictions().Request(old, "r", now_).status()));
  EXPECT_TRUE(absl::IsAborted(directory_.transfers().RequestGrant({.receiver = old}, now_).status()));
  EXPECT_TRUE(
      absl::IsAborted(directory_.transfers().CompleteGrant(old, "t", GrantEnd::kFailed, false, now_)));
  EXPECT_TRUE(absl::IsAborted(
      directory_.PreparePublish({.node = old, .artifact = {.artifact_id = "x"}}, wall_now()).status()));
}

TEST_F(Nodes, CallsOfUnknownNode_AskItToRegister) {
  EXPECT_TRUE(absl::IsNotFound(directory_.Heartbeat(Id("a"), {}, {}, 0, now_).status()));
  Register("a", 2);
  const absl::Status newer = directory_.Heartbeat(Id("a", 3), {}, {}, 0, now_).status();
  EXPECT_TRUE(absl::IsNotFound(newer));
  EXPECT_THAT(newer.message(), HasSubstr("register"));
}

TEST_F(Nodes, NodeName_BelongsToOneLiveNode) {
  Register("a");
  NodeFacts other = SomeNode("b");
  other.name = "name-a";
  const absl::Status clash = directory_.RegisterNode(other, {}, now_).status();
  EXPECT_TRUE(absl::IsAlreadyExists(clash));
  EXPECT_THAT(clash.message(), HasSubstr("node a at a:7000"));
  EXPECT_EQ(directory_.counts().nodes, 1u);

  now_ += options_.membership.node_ttl + absl::Seconds(1);
  directory_.Tick(now_);
  EXPECT_TRUE(directory_.RegisterNode(other, {}, now_).ok());
}

TEST_F(Nodes, NameClash_KeepsPreviousIncarnation) {
  Register("a");
  Register("b");
  NodeFacts renamed = SomeNode("b", 2);
  renamed.name = "name-a";
  EXPECT_TRUE(absl::IsAlreadyExists(directory_.RegisterNode(renamed, {}, now_).status()));
  EXPECT_TRUE(directory_.Heartbeat(Id("b", 1), {}, {}, 0, now_).ok());
}

TEST_F(Nodes, RegistrationWithoutIdentity_IsRefused) {
  for (const auto& spoil : std::vector<std::function<void(NodeFacts&)>>{
           [](NodeFacts& node) { node.node_id.clear(); }, [](NodeFacts& node) { node.name.clear(); },
           [](NodeFacts& node) { node.incarnation = 0; },
           [](NodeFacts& node) { node.incarnation = uint64_t{1} << 63; }}) {
    NodeFacts facts = SomeNode("a");
    spoil(facts);
    EXPECT_TRUE(absl::IsInvalidArgument(directory_.RegisterNode(facts, {}, now_).status()));
  }
}

TEST_F(Nodes, SilentNode_ExpiresWithItsReplicas) {
  Register("a");
  Register("b");
  Publish("x");
  Update("a", {SomeReplica("r", "x")});
  now_ += options_.membership.node_ttl;
  EXPECT_THAT(directory_.Tick(now_), IsEmpty());
  Beat("b");
  now_ += absl::Seconds(1);
  EXPECT_THAT(directory_.Tick(now_), SizeIs(1));
  EXPECT_EQ(directory_.counts().nodes, 1u);
  EXPECT_EQ(directory_.counts().replicas, 0u);
  EXPECT_EQ(Offered("b", "x"), "");
}

// Another process's registration under its id, however high its incarnation, keeps a node out only while it
// lives.
TEST_F(Nodes, ReplacedNode_ReturnsWhenItsReplacementIsSilent) {
  constexpr uint64_t kHighest = (uint64_t{1} << 63) - 1;
  Register("a", 5);
  Register("a", kHighest);
  EXPECT_TRUE(absl::IsAborted(directory_.Heartbeat(Id("a", 5), {}, {}, 0, now_).status()));
  now_ += options_.membership.node_ttl;
  directory_.Tick(now_);
  EXPECT_TRUE(absl::IsAborted(directory_.RegisterNode(SomeNode("a", 5), {}, now_).status()));
  now_ += absl::Seconds(1);
  ASSERT_THAT(directory_.Tick(now_), SizeIs(1));
  EXPECT_TRUE(absl::IsNotFound(directory_.Heartbeat(Id("a", 5), {}, {}, 0, now_).status()));
  EXPECT_TRUE(directory_.RegisterNode(SomeNode("a", 5), {}, now_).ok());
  EXPECT_TRUE(directory_.Heartbeat(Id("a", 5), {}, {}, 0, now_).ok());
  EXPECT_TRUE(absl::IsNotFound(directory_.Heartbeat(Id("a", kHighest), {}, {}, 0, now_).status()));
}

TEST_F(Nodes, ReplacedNode_IsToldWhichNodeReplacedIt) {
  Register("a", 5);
  const absl::Status replaced = directory_.Heartbeat(Id("a", 4), {}, {}, 0, now_).status();
  EXPECT_THAT(replaced.message(), HasSubstr("name-a at a:7000"));
}

TEST_F(Nodes, SameIncarnationAtOtherAddress_IsAborted) {
  Register("a", 5);
  NodeFacts copy = SomeNode("a", 5);
  copy.grpc_address = "copy:7000";
  const absl::Status refused = directory_.RegisterNode(copy, {}, now_).status();
  EXPECT_TRUE(absl::IsAborted(refused));
  EXPECT_THAT(refused.message(), HasSubstr("a:7000"));
  EXPECT_EQ(directory_.membership().Find("a")->facts.grpc_address, "a:7000");
}

TEST_F(Nodes, NodeThatReturnsAfterExpiry_GetsNewGrantKey) {
  auto before = directory_.RegisterNode(SomeNode("a"), {}, now_);
  now_ += options_.membership.node_ttl + absl::Seconds(1);
  directory_.Tick(now_);
  auto after = directory_.RegisterNode(SomeNode("a"), {}, now_);
  ASSERT_TRUE(before.ok() && after.ok());
  EXPECT_NE(before->grant_key, after->grant_key);
}

TEST_F(Nodes, ExtendLiveness_KeepsNodesAndGrantsAfterStorePause) {
  Register("a");
  Register("b");
  Publish("x");
  Update("a", {SomeReplica("r", "x")});
  ASSERT_FALSE(Request("b", "x").granted.empty());
  now_ += absl::Hours(5);
  directory_.ExtendLiveness(absl::Hours(5));
  EXPECT_THAT(directory_.Tick(now_), IsEmpty());
  EXPECT_EQ(directory_.counts().active_grants, 1u);
}

TEST_F(Nodes, HeartbeatInterval_GrowsWithTheFleet) {
  Register("a");
  EXPECT_EQ(Beat("a").liveness.heartbeat_interval, options_.membership.heartbeat_interval);
  EXPECT_EQ(Beat("a").liveness.node_ttl, options_.membership.node_ttl);
  for (int i = 1; i < 10'000; ++i) Register(absl::StrCat("node ", i));
  const Liveness large = Beat("a").liveness;
  EXPECT_GT(large.heartbeat_interval, absl::Seconds(6));
  EXPECT_NEAR(absl::FDivDuration(large.node_ttl, large.heartbeat_interval),
              absl::FDivDuration(options_.membership.node_ttl, options_.membership.heartbeat_interval),
              0.001);

  now_ += large.node_ttl;
  EXPECT_EQ(directory_.Tick(now_).size(), 0u) << "the store waits so long for each of a large fleet";
  now_ += absl::Seconds(1);
  EXPECT_EQ(directory_.Tick(now_).size(), 10'000u);
  Register("a");
  EXPECT_EQ(Beat("a").liveness.node_ttl, large.node_ttl) << "the others may come back";
}

TEST_F(Nodes, ShorterNodeTtl_AppliesAfterNodeConfirmsIt) {
  for (int i = 0; i < 10'000; ++i) Register(absl::StrCat("node ", i));
  directory_.Tick(now_);
  const absl::Duration long_ttl = Beat("node 0").liveness.node_ttl;
  now_ += kFleetAge;
  directory_.Tick(now_);
  Register("node 0");
  now_ += kFleetAge;
  Beat("node 0");
  directory_.Tick(now_);  // the fleet is small now, as the node has yet to hear
  now_ += long_ttl;
  EXPECT_THAT(directory_.Tick(now_), IsEmpty());
  EXPECT_EQ(Beat("node 0").liveness.node_ttl, options_.membership.node_ttl);
  now_ += long_ttl;
  EXPECT_THAT(directory_.Tick(now_), IsEmpty()) << "that answer may be lost";
  Beat("node 0");
  now_ += options_.membership.node_ttl + absl::Seconds(1);
  EXPECT_THAT(directory_.Tick(now_), SizeIs(1));
}

TEST_F(Nodes, DrainingNode_EvictsReplicasThatExistElsewhere) {
  Register("a");
  Register("b");
  Publish("x");
  Publish("y");
  ReplicaInfo pinned = SomeReplica("pinned", "x", LocationKind::kGpu);
  pinned.pinned = true;
  Update("a", {SomeReplica("copied", "x"), SomeReplica("only", "y"), pinned,
               SomeReplica("packed", "x", LocationKind::kDisk)});
  Update("b", {SomeReplica("elsewhere", "x")});
  EXPECT_THAT(Beat("a").evict_replicas, IsEmpty());

  ASSERT_TRUE(directory_.DrainNode("a", true).ok());
  EXPECT_THAT(Beat("a").evict_replicas, ElementsAre("copied"));
  ASSERT_TRUE(directory_.DrainNode("b", true).ok());
  EXPECT_THAT(Beat("a").evict_replicas, IsEmpty()) << "the other copy is about to go, too";
  EXPECT_TRUE(absl::IsNotFound(directory_.DrainNode("unknown", true)));
}

TEST_F(Nodes, DrainingNode_ServesOnlyReplicasNoOtherNodeHas) {
  Register("a");
  Register("b");
  Register("c");
  Publish("x");
  Update("a", {SomeReplica("r1", "x")});
  Update("b", {SomeReplica("r2", "x")});
  ASSERT_TRUE(directory_.DrainNode("a", true).ok());
  EXPECT_EQ(Offered("c", "x"), "r2");
  ASSERT_TRUE(directory_.DrainNode("b", true).ok());
  EXPECT_EQ(Offered("c", "x"), "r1");
}

TEST_F(Nodes, DrainingNode_BeginsNoTransferUntilUndrained) {
  Register("a");
  Register("b");
  Register("c");
  Publish("x");
  Update("a", {SomeReplica("r1", "x")});
  Update("c", {SomeReplica("r3", "x")});
  ASSERT_TRUE(directory_.DrainNode("b", true).ok());
  const GrantOffer refused = Request("b", "x");
  EXPECT_THAT(refused.granted, IsEmpty());
  EXPECT_EQ(refused.retry_after, absl::ZeroDuration());
  EXPECT_THAT(refused.no_source_reason, HasSubstr("is draining"));
  EXPECT_THAT(refused.waiting_for, ElementsAre(HasSubstr("tensorcast node undrain name-b")));
  ASSERT_TRUE(directory_.DrainNode("b", false).ok());
  EXPECT_FALSE(Request("b", "x").granted.empty());
}

TEST_F(Nodes, TransferOfDrainingNode_IsGivenAnotherSource) {
  Register("a");
  Register("b");
  Register("c");
  Publish("x");
  Update("a", {SomeReplica("r1", "x")});
  Update("c", {SomeReplica("r3", "x")});
  ASSERT_FALSE(Request("b", "x").granted.empty());
  ASSERT_TRUE(directory_.DrainNode("b", true).ok());
  const GrantOffer other = Request("b", "x", /*excluded=*/{"r1"});
  ASSERT_EQ(other.granted.size(), 1u);
  EXPECT_EQ(other.granted[0].grant.replica_id, "r3");
}

}  // namespace
}  // namespace tensorcast::global_store::nodes_test
