// Compares what nodes report that they hold with what the directory knows.
#include "core/replica/inventory_digest.h"
#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ConservationTest : public DirectoryTest {
 protected:
  static uint64_t DigestOf(const std::vector<ReplicaInfo>& replicas) {
    uint64_t digest = 0;
    for (const ReplicaInfo& replica : replicas) digest += InventoryDigestOf(replica);
    return digest;
  }
  HeartbeatReply BeatWith(const std::string& node_id, const HeldByNode& held) {
    auto reply = directory_.Heartbeat(Id(node_id), {}, active_, sequence_[node_id], now_, held);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.value_or(HeartbeatReply{});
  }
  HeartbeatReply BeatHolding(const std::string& node_id, const std::vector<ReplicaInfo>& replicas) {
    return BeatWith(node_id, {.inventory_digest = DigestOf(replicas), .served_grants = {}});
  }
  HeartbeatReply BeatServing(const std::string& node_id, const std::vector<std::string>& grants) {
    return BeatWith(node_id, {.inventory_digest = std::nullopt, .served_grants = grants});
  }
  // As the 2 s between two heartbeats.
  void Pass() { now_ += absl::Seconds(2); }

  std::vector<std::string> active_;
};

TEST_F(ConservationTest, ReplicasHeldAndListed_AreEqual) {
  Register("a");
  Publish("x");
  Update("a", {SomeReplica("one", "x"), SomeReplica("two", "x", LocationKind::kGpu)});
  EXPECT_EQ(BeatHolding("a", {SomeReplica("two", "x"), SomeReplica("one", "x")}).conservation.inventories, 1);
  Update("a", {SomeReplica("one", "x", LocationKind::kCpu, ReplicaState::kGone),
               SomeReplica("three", "x", LocationKind::kCpu, ReplicaState::kFilling)});
  EXPECT_EQ(BeatHolding("a", {SomeReplica("two", "x")}).conservation.inventories, 1);
  EXPECT_EQ(directory_.conservation().inventories, 2);
  EXPECT_EQ(directory_.conservation().inventory_violations, 0);
}

TEST_F(ConservationTest, LastingDifference_IsToldOnceAndMendedByInventory) {
  Register("a");
  Publish("x");
  Update("a", {SomeReplica("one", "x")});
  EXPECT_FALSE(BeatHolding("a", {}).inventory_wanted) << "an update of it may be on its way";
  Pass();
  Pass();
  EXPECT_THAT(BeatHolding("a", {}).conservation.found, IsEmpty());
  Pass();
  const HeartbeatReply reply = BeatHolding("a", {});
  EXPECT_EQ(reply.conservation.inventory_violations, 1);
  EXPECT_THAT(reply.conservation.found, ElementsAre(HasSubstr("inventory of node name-a at sequence 1")));
  EXPECT_TRUE(reply.inventory_wanted);
  ASSERT_TRUE(directory_.ReconcileInventory(Id("a"), 1, {}, now_).ok());
  EXPECT_EQ(BeatHolding("a", {}).conservation.inventories, 1) << "equal again";
  EXPECT_EQ(directory_.conservation().inventory_violations, 1);
}

TEST_F(ConservationTest, DifferenceThatInventoryDoesNotMend_GoesOnCounting) {
  Register("a");
  Publish("x");
  Update("a", {SomeReplica("one", "x")});
  int wanted = 0;
  int told = 0;
  for (int beat = 0; beat < 20; ++beat, Pass()) {
    const HeartbeatReply reply = BeatHolding("a", {});
    told += static_cast<int>(reply.conservation.found.size());
    if (!reply.inventory_wanted) continue;
    ++wanted;
    ASSERT_TRUE(directory_.ReconcileInventory(Id("a"), 1, {SomeReplica("one", "x")}, now_).ok());
  }
  EXPECT_EQ(wanted, 1) << "a fleet that differs for good must not send its inventories for ever";
  EXPECT_EQ(told, 1);
  EXPECT_GE(directory_.conservation().inventory_violations, 10);
}

TEST_F(ConservationTest, PublicationBeforeNodesOwnUpdate_IsNotViolation) {
  Register("a");
  Publish("x");
  directory_.AddPublishedReplica(Id("a"), SomeReplica("one", "x"));
  EXPECT_EQ(BeatHolding("a", {}).conservation.inventories, 0);
  Pass();
  Update("a", {SomeReplica("one", "x")});
  for (int beat = 0; beat < 5; ++beat, Pass()) {
    EXPECT_EQ(BeatHolding("a", {SomeReplica("one", "x")}).conservation.inventories, 1);
  }
  EXPECT_EQ(directory_.conservation().inventory_violations, 0);
}

TEST_F(ConservationTest, HeartbeatOfAnotherSequence_IsNotCompared) {
  Register("a");
  Publish("x");
  sequence_["a"] = 1;  // its update is on its way
  EXPECT_EQ(BeatHolding("a", {SomeReplica("one", "x")}).conservation.inventories, 0);
  EXPECT_EQ(directory_.conservation().inventories, 0);
}

TEST_F(ConservationTest, GrantServedLongAfterItsEnd_IsViolationOnce) {
  Register("a");
  Register("b");
  Publish("x");
  Update("a", {SomeReplica("one", "x")});
  const std::string grant = Request("b", "x").granted.front().grant.grant_id;
  EXPECT_EQ(BeatServing("a", {grant}).conservation.grant_violations, 0);
  ASSERT_TRUE(directory_.transfers()
                  .CompleteGrant(Id("b"), grant, GrantEnd::kSucceeded, /*source_corrupt=*/false, now_)
                  .ok());
  for (int beat = 0; beat < 3; ++beat, Pass()) {
    EXPECT_EQ(BeatServing("a", {grant}).conservation.grant_violations, 0) << "it is being told";
  }
  const HeartbeatReply reply = BeatServing("a", {grant});
  EXPECT_EQ(reply.conservation.grant_violations, 1);
  EXPECT_THAT(reply.conservation.found, ElementsAre(HasSubstr(grant)));
  for (int beat = 0; beat < 10; ++beat, Pass()) BeatServing("a", {grant});
  EXPECT_EQ(directory_.conservation().grant_violations, 1);
  EXPECT_EQ(directory_.conservation().grants, 15);
}

TEST_F(ConservationTest, GrantsOfEarlierStore_AreNotJudged) {
  Register("a");
  for (int beat = 0; beat < 10; ++beat, Pass()) BeatServing("a", {"from before the restart"});
  EXPECT_EQ(directory_.conservation().grant_violations, 0);
}

}  // namespace
}  // namespace tensorcast::global_store
