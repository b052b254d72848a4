// Shared objects as copies: objects that a URI names, which any node may read.
#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store::shared_copies_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Node a has the only replica of x, which was imported from an object store on node b.
class SharedCopies : public DirectoryTest {
 protected:
  void SetUp() override {
    Register("a");
    Register("b");
    Import("b", object_);
    Update("a", {SomeReplica("r", "x")});
  }
  void Import(const std::string& node, const ObjectIdentity& object) {
    const auto plan = directory_.PreparePublish({.node = Id(node),
                                                 .artifact = {.artifact_id = "x"},
                                                 .origin = Origin{.node_id = node, .objects = {object}}},
                                                wall_now());
    ASSERT_TRUE(plan.ok()) << plan.status();
    directory_.Apply(plan->facts, now_);
    directory_.catalog().RenewOrigin("x", node);
  }
  std::vector<Origin> OnRecord() { return DescribeArtifact(directory_, "x")->record.origins; }
  void Note(const std::string& node, OriginFinding finding, std::string_view reason = "") {
    directory_.NoteOrigin("x", {.node_id = node, .objects = {object_}}, finding, reason, now_);
  }
  // The one question that an eviction asks first, if it asks any.
  std::vector<std::string> AskedAt(const EvictionDecision& decision) {
    std::vector<std::string> addresses;
    for (const OriginToCheck& origin : decision.unchecked_origins) addresses.push_back(origin.grpc_address);
    return addresses;
  }

  const ObjectIdentity object_{"s3://bucket/m", 1, "version:1"};
};

TEST_F(SharedCopies, ObjectImportedByTwoNodes_IsOneOrigin) {
  Import("a", object_);
  EXPECT_THAT(OnRecord(), SizeIs(1));
  EXPECT_EQ(OnRecord()[0].node_id, "b") << "the first that imported it";
  Import("a", {"s3://bucket/m", 1, "version:2"});
  ASSERT_THAT(OnRecord(), SizeIs(1));
  EXPECT_EQ(OnRecord()[0].objects[0].version, "version:2");
  Import("a", {"hf://org/name@main/m", 1, "sha256:1"});
  EXPECT_THAT(OnRecord(), SizeIs(2));
}

TEST_F(SharedCopies, EvictingNode_LooksAndProvesUnlessItImported) {
  const EvictionDecision unchecked = Evict("a", "r");
  EXPECT_FALSE(unchecked.granted);
  EXPECT_THAT(AskedAt(unchecked), ElementsAre("a:7000")) << "one node, and no other's word";
  EXPECT_EQ(unchecked.unchecked_origins[0].origin.node_id, "a");
  Note("a", OriginFinding::kIntact);
  const auto to_prove = directory_.evictions().Request(Id("a"), "r", now_);
  ASSERT_TRUE(to_prove.ok()) << to_prove.status();
  EXPECT_FALSE(to_prove->granted);
  ASSERT_THAT(to_prove->to_prove.copies, SizeIs(1));
  EXPECT_EQ(to_prove->to_prove.copies[0].grpc_address, "a:7000");
  ASSERT_TRUE(to_prove->to_prove.copies[0].origin.has_value());
  const EvictionDecision lie = Evict("a", "r", /*liars=*/{"a"});
  EXPECT_FALSE(lie.granted);
  EXPECT_THAT(lie.reason, HasSubstr("did not prove that it can read s3://bucket/m"));
  EXPECT_TRUE(Evict("a", "r").granted);
}

TEST_F(SharedCopies, ObjectThatEvictingNodeImported_CountsAfterItsCheckAlone) {
  Update("a", {SomeReplica("r", "x", LocationKind::kCpu, ReplicaState::kGone)});
  Update("b", {SomeReplica("s", "x")});
  EXPECT_THAT(AskedAt(Evict("b", "s")), ElementsAre("b:7000"));
  Note("b", OriginFinding::kIntact);
  const auto decision = directory_.evictions().Request(Id("b"), "s", now_);
  ASSERT_TRUE(decision.ok()) << decision.status();
  EXPECT_TRUE(decision->granted);
}

TEST_F(SharedCopies, ImporterAway_ObjectStillCounts) {
  now_ += options_.membership.node_ttl + absl::Seconds(1);
  Beat("a");
  directory_.Tick(now_);
  ASSERT_EQ(directory_.membership().Find("b"), nullptr);
  EXPECT_THAT(AskedAt(Evict("a", "r")), ElementsAre("a:7000"));
  Note("a", OriginFinding::kIntact);
  EXPECT_TRUE(Evict("a", "r").granted);
  EXPECT_THAT(Request("a", "x").origins, SizeIs(1));
}

TEST_F(SharedCopies, MutableObject_DoesNotCountAsCopy) {
  Note("a", OriginFinding::kMutable);
  const EvictionDecision decision = Evict("a", "r");
  EXPECT_FALSE(decision.granted);
  EXPECT_THAT(decision.unchecked_origins, IsEmpty());
  EXPECT_THAT(decision.reason, AllOf(HasSubstr("s3://bucket/m"), HasSubstr("replaced or deleted")));
}

TEST_F(SharedCopies, WhatOneNodeFound_SaysNothingOfAnother) {
  Note("b", OriginFinding::kIntact);
  EXPECT_THAT(AskedAt(Evict("a", "r")), ElementsAre("a:7000"));
  Note("a", OriginFinding::kUnclear, "not in daemon.origins");
  const EvictionDecision denied = Evict("a", "r");
  EXPECT_FALSE(denied.granted);
  EXPECT_THAT(denied.reason, HasSubstr("could not check object s3://bucket/m (not in daemon.origins)"));
}

TEST_F(SharedCopies, GoneVersion_DoesNotCountUntilImportedAgain) {
  Note("a", OriginFinding::kGone, "no such version");
  now_ += absl::Minutes(1);
  Beat("a");
  EXPECT_THAT(Evict("a", "r").reason, HasSubstr("is gone (no such version)"));
  Import("a", {"s3://bucket/m", 1, "version:2"});
  EXPECT_THAT(AskedAt(Evict("a", "r")), ElementsAre("a:7000"));
}

}  // namespace
}  // namespace tensorcast::global_store::shared_copies_test
