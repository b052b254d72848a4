#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store::inventory_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Inventory : public DirectoryTest {
 protected:
  void SetUp() override {
    Register("a");
    Register("b");
    Publish("x");
  }
  std::vector<std::string> ReplicasOf(const std::string& artifact_id) {
    std::vector<std::string> ids;
    const ArtifactView view = *DescribeArtifact(directory_, artifact_id);
    for (const ReplicaInfo& replica : view.replicas) ids.push_back(replica.id);
    return ids;
  }
  absl::StatusOr<bool> UpdateAt(uint64_t sequence, const std::vector<ReplicaInfo>& replicas) {
    return directory_.UpdateReplicas(Id("a"), sequence, replicas, now_);
  }
  absl::StatusOr<std::vector<std::string>> Reconcile(uint64_t sequence,
                                                     const std::vector<ReplicaInfo>& replicas) {
    return directory_.ReconcileInventory(Id("a"), sequence, replicas, now_);
  }
};

TEST_F(Inventory, Inventory_FollowsReplicaUpdates) {
  Update("a", {SomeReplica("r1", "x"), SomeReplica("r2", "x")});
  EXPECT_THAT(ReplicasOf("x"), ElementsAre("r1", "r2"));
  Update("a", {SomeReplica("r1", "x", LocationKind::kCpu, ReplicaState::kGone)});
  Update("a", {SomeReplica("r2", "x", LocationKind::kCpu, ReplicaState::kFailed)});
  EXPECT_THAT(ReplicasOf("x"), IsEmpty());
}

TEST_F(Inventory, Replica_IsOfferedOnlyWhileReady) {
  Update("a", {SomeReplica("r", "", LocationKind::kCpu, ReplicaState::kAllocating)});
  Update("a", {SomeReplica("r", "x", LocationKind::kCpu, ReplicaState::kFilling)});
  EXPECT_EQ(Offered("b", "x"), "");
  Update("a", {SomeReplica("r", "x")});
  EXPECT_EQ(Offered("b", "x"), "r");
  Update("a", {SomeReplica("r", "x", LocationKind::kCpu, ReplicaState::kDraining)});
  EXPECT_EQ(Offered("b", "x"), "");
}

TEST_F(Inventory, RepeatedUpdate_IsIgnored) {
  ASSERT_TRUE(UpdateAt(1, {SomeReplica("r", "x")}).ok());
  ASSERT_TRUE(UpdateAt(2, {SomeReplica("r", "x", LocationKind::kCpu, ReplicaState::kGone)}).ok());
  EXPECT_EQ(UpdateAt(1, {SomeReplica("r", "x")}).value(), false);
  EXPECT_THAT(ReplicasOf("x"), IsEmpty());
}

TEST_F(Inventory, UpdateGap_RequestsInventoryUntilItArrives) {
  ASSERT_TRUE(UpdateAt(1, {SomeReplica("r1", "x")}).ok());
  EXPECT_EQ(UpdateAt(3, {SomeReplica("r3", "x")}).value(), true);
  EXPECT_THAT(ReplicasOf("x"), ElementsAre("r1", "r3"));
  EXPECT_TRUE(directory_.Heartbeat(Id("a"), {}, {}, 3, now_)->inventory_wanted);

  ASSERT_TRUE(Reconcile(3, {SomeReplica("r2", "x"), SomeReplica("r3", "x")}).ok());
  EXPECT_THAT(ReplicasOf("x"), ElementsAre("r2", "r3"));
  EXPECT_FALSE(directory_.Heartbeat(Id("a"), {}, {}, 3, now_)->inventory_wanted);
  EXPECT_EQ(UpdateAt(4, {}).value(), false);
}

TEST_F(Inventory, NewlyRegisteredNode_IsAskedForInventory) {
  ASSERT_TRUE(directory_.RegisterNode(SomeNode("c"), {}, now_).ok());
  EXPECT_TRUE(directory_.Heartbeat(Id("c"), {}, {}, 0, now_)->inventory_wanted);
}

TEST_F(Inventory, UpdateMissingAtSecondHeartbeat_RequestsInventory) {
  EXPECT_FALSE(directory_.Heartbeat(Id("a"), {}, {}, 1, now_)->inventory_wanted)
      << "it may have overtaken the update";
  EXPECT_TRUE(directory_.Heartbeat(Id("a"), {}, {}, 1, now_)->inventory_wanted);
}

TEST_F(Inventory, InventoryOlderThanUpdates_IsIgnoredAndRequestedAgain) {
  ASSERT_TRUE(UpdateAt(1, {SomeReplica("r1", "x")}).ok());
  ASSERT_TRUE(UpdateAt(2, {SomeReplica("r2", "x")}).ok());
  ASSERT_TRUE(Reconcile(1, {SomeReplica("r1", "x")}).ok());
  EXPECT_THAT(ReplicasOf("x"), ElementsAre("r1", "r2"));
  EXPECT_TRUE(directory_.Heartbeat(Id("a"), {}, {}, 2, now_)->inventory_wanted);
}

TEST_F(Inventory, InvalidReplicas_AreSkippedAndOthersAccepted) {
  ReplicaInfo of_another = SomeReplica("of-b", "x");
  of_another.node_id = "b";
  const std::vector<ReplicaInfo> bad = {SomeReplica("", "x"), of_another, SomeReplica("of-what", ""),
                                        SomeReplica("\x1B[2J", "x"), SomeReplica(std::string(500, 'r'), "x")};
  std::vector<ReplicaInfo> listed = bad;
  listed.push_back(SomeReplica("r1", "x"));
  ASSERT_TRUE(Reconcile(1, listed).ok());
  EXPECT_THAT(ReplicasOf("x"), ElementsAre("r1"));
  listed.push_back(SomeReplica("r2", "x"));
  ASSERT_TRUE(UpdateAt(2, listed).ok());
  EXPECT_THAT(ReplicasOf("x"), ElementsAre("r1", "r2"));
}

TEST_F(Inventory, EqualReplicaIdsOfTwoNodes_AreBothListed) {
  Update("b", {SomeReplica("r", "x")});
  Update("a", {SomeReplica("r", "x")});
  EXPECT_THAT(ReplicasOf("x"), ElementsAre("r", "r"));
  ASSERT_TRUE(Reconcile(2, {}).ok());
  EXPECT_THAT(ReplicasOf("x"), ElementsAre("r")) << "of node b";
}

TEST_F(Inventory, ListedArtifactNotPublished_IsNamedAsUnknown) {
  auto unknown = Reconcile(1, {SomeReplica("r1", "x"), SomeReplica("r2", "lost"), SomeReplica("r3", "lost"),
                               SomeReplica("r4", "half", LocationKind::kCpu, ReplicaState::kFilling)});
  ASSERT_TRUE(unknown.ok());
  EXPECT_THAT(*unknown, ElementsAre("lost"));
}

TEST_F(Inventory, OmittedReplica_LosesItsGrants) {
  Update("a", {SomeReplica("r", "x")});
  const GrantOffer offer = Request("b", "x");
  ASSERT_FALSE(offer.granted.empty());
  ASSERT_TRUE(Reconcile(9, {}).ok());
  const auto ended = directory_.transfers().grants().TakeEnded();
  ASSERT_THAT(ended, SizeIs(1));
  EXPECT_EQ(ended[0].end, GrantEnd::kRevoked);
  EXPECT_THAT(Beat("a").revoked_grants, ElementsAre(offer.granted.front().grant.grant_id));
  EXPECT_THAT(Beat("b").revoked_grants, ElementsAre(offer.granted.front().grant.grant_id));
}

TEST_F(Inventory, DeletedArtifact_IsForgottenUntilItsReplicasAreGone) {
  Update("a", {SomeReplica("r1", "x"), SomeReplica("r2", "x", LocationKind::kDisk)});
  EXPECT_THAT(Beat("a").forgotten_artifacts, IsEmpty());
  Delete("x");
  EXPECT_THAT(Beat("a").forgotten_artifacts, ElementsAre("x"));
  EXPECT_THAT(Beat("b").forgotten_artifacts, IsEmpty());
  Update("a", {SomeReplica("r1", "x", LocationKind::kCpu, ReplicaState::kGone)});
  EXPECT_THAT(Beat("a").forgotten_artifacts, ElementsAre("x"));
  Update("a", {SomeReplica("r2", "x", LocationKind::kDisk, ReplicaState::kGone)});
  EXPECT_THAT(Beat("a").forgotten_artifacts, IsEmpty());
}

TEST_F(Inventory, LateInventory_DoesNotRestoreDeletedArtifact) {
  Delete("x");
  auto unknown = Reconcile(1, {SomeReplica("r", "x", LocationKind::kDisk)});
  ASSERT_TRUE(unknown.ok());
  EXPECT_THAT(*unknown, IsEmpty());
  EXPECT_THAT(Beat("a").forgotten_artifacts, ElementsAre("x"));
  Publish("x");
  EXPECT_THAT(Beat("a").forgotten_artifacts, IsEmpty());
  EXPECT_EQ(Offered("b", "x"), "r");
}

class Eviction : public Inventory {};

TEST_F(Eviction, Eviction_IsGrantedWhenOtherReadyReplicaExists) {
  Update("a", {SomeReplica("r1", "x")});
  Update("b", {SomeReplica("r2", "x")});
  EXPECT_TRUE(Evict("a", "r1").granted);
  EXPECT_TRUE(Evict("a", "r1").granted) << "asked again";
}

TEST_F(Eviction, EvictionOfLastCopy_IsRefused) {
  Update("a", {SomeReplica("r1", "x")});
  const EvictionDecision decision = Evict("a", "r1");
  EXPECT_FALSE(decision.granted);
  EXPECT_THAT(decision.reason, HasSubstr("last copy"));
  EXPECT_EQ(Offered("b", "x"), "r1");
}

TEST_F(Eviction, UnprovenReplica_DoesNotCountAsCopy) {
  Register("c");
  Update("a", {SomeReplica("r1", "x")});
  Update("b", {SomeReplica("r1", "x"), SomeReplica("claimed", "x", LocationKind::kDisk)});
  const EvictionDecision decision = Evict("a", "r1", /*liars=*/{"b"});
  EXPECT_FALSE(decision.granted);
  EXPECT_THAT(decision.reason, HasSubstr("node name-b did not prove the copy that it reports"));
  EXPECT_EQ(Offered("c", "x").empty(), false) << "it is offered as before";
  // A proof is of one node's replica.
  EXPECT_FALSE(directory_.evictions().Request(Id("a"), "r1", now_, {.proven = {{"c", "r1"}}})->granted);
  EXPECT_TRUE(directory_.evictions().Request(Id("a"), "r1", now_, {.proven = {{"b", "claimed"}}})->granted);
}

TEST_F(Eviction, EvictionWithManyHolders_AsksUntilOneProves) {
  Update("a", {SomeReplica("r", "x")});
  std::set<std::string> liars;
  for (int i = 0; i < 10; ++i) {
    const std::string node = absl::StrCat("n", i);
    Register(node);
    Update(node, {SomeReplica("r", "x")});
    if (i != 7) liars.insert(node);
  }
  EXPECT_TRUE(Evict("a", "r", liars).granted);
}

TEST_F(Eviction, ConcurrentEvictionsOfTwoCopies_GrantOne) {
  Update("a", {SomeReplica("r1", "x")});
  Update("b", {SomeReplica("r2", "x")});
  EXPECT_TRUE(Evict("a", "r1").granted);
  EXPECT_FALSE(Evict("b", "r2").granted);
}

TEST_F(Eviction, ReplicaGrantedForEviction_IsNoLongerOffered) {
  Register("c");
  Update("a", {SomeReplica("r1", "x")});
  Update("b", {SomeReplica("r2", "x")});
  ASSERT_TRUE(Evict("a", "r1").granted);
  Update("a", {SomeReplica("r1", "x")});
  ASSERT_TRUE(Reconcile(7, {SomeReplica("r1", "x")}).ok());
  EXPECT_EQ(Offered("c", "x"), "r2");
  EXPECT_EQ(Offered("b", "x"), "");
  ASSERT_TRUE(directory_.evictions().Withdraw(Id("a"), "r1").ok());
  EXPECT_EQ(Offered("b", "x"), "r1");
}

TEST_F(Eviction, UnreadyCorruptOrDrainingReplica_DoesNotCountAsCopy) {
  Register("c");
  Update("a", {SomeReplica("r1", "x")});
  Update("b", {SomeReplica("r2", "x", LocationKind::kCpu, ReplicaState::kFilling)});
  EXPECT_FALSE(Evict("a", "r1").granted);
  Update("b", {SomeReplica("r2", "x")});
  ASSERT_TRUE(directory_.DrainNode("b", true).ok());
  EXPECT_FALSE(Evict("a", "r1").granted);
  ASSERT_TRUE(directory_.DrainNode("b", false).ok());
  ASSERT_FALSE(Request("c", "x", {"r1"}).granted.empty());
  Request("c", "x", {"r2"}, {"r2"});  // under that grant
  EXPECT_FALSE(Evict("a", "r1").granted);
}

TEST_F(Eviction, PackedFileOnSameNode_CountsAsCopy) {
  Update("a", {SomeReplica("memory", "x"), SomeReplica("packed", "x", LocationKind::kDisk)});
  EXPECT_TRUE(Evict("a", "memory").granted);
  EXPECT_FALSE(Evict("a", "packed").granted);
}

TEST_F(Eviction, EvictionOfDeletedOrUnfinishedReplica_IsGranted) {
  Update("a", {SomeReplica("r1", "x"), SomeReplica("r2", "y", LocationKind::kCpu, ReplicaState::kFilling)});
  EXPECT_TRUE(Evict("a", "r2").granted);
  Delete("x");
  EXPECT_TRUE(Evict("a", "r1").granted);
}

TEST_F(Eviction, EvictionOfUnpublishedReplica_IsRefused) {
  Update("a", {SomeReplica("r", "unpublished")});
  EXPECT_FALSE(Evict("a", "r").granted);
}

TEST_F(Eviction, EvictionOfUnknownReplica_RequestsInventory) {
  EXPECT_TRUE(absl::IsNotFound(directory_.evictions().Request(Id("a"), "never heard of", now_).status()));
  EXPECT_TRUE(Beat("a").inventory_wanted);
}

}  // namespace
}  // namespace tensorcast::global_store::inventory_test
