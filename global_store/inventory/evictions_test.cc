// The inventory and the evictions by themselves, without a directory.
#include "global_store/inventory/evictions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tensorcast::global_store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class FixedSecrets final : public Secrets {
 public:
  std::string NewGrantId() override { return "grant"; }
  std::string NewGrantKey() override { return "key"; }
};

class EvictionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    catalog_.Apply(ArtifactRecord{.artifact_id = "x"});
    for (const std::string id : {"a", "b"}) {
      nodes_.Register({.node_id = id, .name = id, .incarnation = 1}, {}, now_);
      inventory_.Admit(*nodes_.Find(id));
    }
  }
  static ReplicaInfo Replica(const std::string& id, ReplicaState state = ReplicaState::kReady) {
    return {.id = id, .artifact_id = "x", .location = {}, .state = state};
  }

  const SteadyTime now_ = SteadyTime() + absl::Hours(1);
  FixedSecrets secrets_;
  Catalog catalog_{Retention{}};
  Membership nodes_{{}, &secrets_};
  Inventory inventory_{nodes_, catalog_};
  Evictions evictions_{absl::Seconds(2), nodes_, catalog_, &inventory_};
};

TEST_F(EvictionsTest, UpdateAfterAGap_WantsAnInventory) {
  EXPECT_TRUE(inventory_.Reconcile("a", 1, {Replica("r")}, now_).unknown.empty());
  EXPECT_FALSE(inventory_.Update("a", 2, {Replica("s")}).inventory_wanted);
  EXPECT_TRUE(inventory_.Update("a", 4, {}).inventory_wanted);
  EXPECT_THAT(inventory_.Reconcile("a", 4, {Replica("s")}, now_).gone, ElementsAre("r"));
  EXPECT_EQ(inventory_.size(), 1u);
}

TEST_F(EvictionsTest, IndexOfSources_FollowsTheLabelsOfItsNode) {
  inventory_.Update("a", 1, {Replica("r")});
  inventory_.Suspend("a");
  NodeFacts facts = nodes_.Find("a")->facts;
  facts.labels = {{"zone", "z"}};
  nodes_.Register(facts, {}, now_);
  inventory_.Admit(*nodes_.Find("a"));
  const std::string scope = SourceIndex::ScopesOf("x", nodes_.Find("a")->end).front();
  ASSERT_NE(inventory_.sources().Find(scope), nullptr);
  inventory_.Update("a", 2, {Replica("r", ReplicaState::kGone)});
  EXPECT_EQ(inventory_.sources().Find(scope), nullptr);
  EXPECT_EQ(inventory_.sources().Find("x"), nullptr);
}

TEST_F(EvictionsTest, LastCopy_IsRefusedUntilAnotherIsProven) {
  inventory_.Update("a", 1, {Replica("r")});
  const auto last = evictions_.Request({"a", 1}, "r", now_);
  ASSERT_TRUE(last.ok());
  EXPECT_FALSE(last->granted);
  EXPECT_THAT(last->to_prove.copies, IsEmpty());
  inventory_.Update("b", 1, {Replica("s")});
  EXPECT_THAT(evictions_.Request({"a", 1}, "r", now_)->to_prove.copies, SizeIs(1));
  EXPECT_TRUE(evictions_.Request({"a", 1}, "r", now_, {.proven = {{"b", "s"}}})->granted);
}

TEST_F(EvictionsTest, GrantedReplica_CountsAgainOnceWithdrawn) {
  inventory_.Update("a", 1, {Replica("r"), Replica("s")});
  ASSERT_TRUE(evictions_.Request({"a", 1}, "r", now_)->granted);
  EXPECT_FALSE(evictions_.Request({"a", 1}, "s", now_)->granted) << "each may not rely on the other";
  ASSERT_TRUE(evictions_.Withdraw({"a", 1}, "r").ok());
  EXPECT_TRUE(evictions_.Request({"a", 1}, "s", now_)->granted);
}

}  // namespace
}  // namespace tensorcast::global_store
