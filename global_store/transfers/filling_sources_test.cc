// Replicas that fill as sources: which receivers are offered them, and that none waits in a circle.
#include <set>

#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store::filling_sources_test {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class FillingSources : public DirectoryTest {
 protected:
  explicit FillingSources(DirectoryOptions options = {.transfers = {.filling_lanes = {"ucx"}}})
      : DirectoryTest(std::move(options)) {}
  void SetUp() override {
    for (const char* node : {"root", "a", "b", "c"}) Register(node);
    Publish("x");
  }
  void Have(const std::string& node) { Update(node, {SomeReplica("r-" + node, "x")}); }
  void Fill(const std::string& node, uint32_t chunks_present = 0) {
    ReplicaInfo replica = SomeReplica("r-" + node, "x", LocationKind::kCpu, ReplicaState::kFilling);
    replica.chunks_present = chunks_present;
    Update(node, {replica});
  }
  void Drop(const std::string& node) {
    Update(node, {SomeReplica("r-" + node, "x", LocationKind::kCpu, ReplicaState::kFailed)});
  }
  // For so many sources beside those that it holds.
  GrantOffer Ask(const std::string& receiver, uint32_t sources = 4) {
    const auto held = static_cast<uint32_t>(held_[receiver].size());
    GrantRequest request{.receiver = Id(receiver),
                         .artifact_id = "x",
                         .destination = {.kind = LocationKind::kCpu},
                         .excluded_replicas = given_up_[receiver],
                         .sources = held + sources,
                         .held_grants = held_[receiver]};
    auto offer = directory_.transfers().RequestGrant(request, now_);
    EXPECT_TRUE(offer.ok()) << offer.status();
    for (const OfferedGrant& granted : offer->granted) held_[receiver].push_back(granted.grant.grant_id);
    return *std::move(offer);
  }
  void GiveBack(const std::string& node, const GrantOffer& offer) {
    for (const OfferedGrant& granted : offer.granted) {
      const std::string& id = granted.grant.grant_id;
      ASSERT_TRUE(directory_.transfers().CompleteGrant(Id(node), id, GrantEnd::kCancelled, false, now_).ok());
      std::erase(held_[node], id);
    }
  }
  static std::set<std::string> NodesOf(const GrantOffer& offer) {
    std::set<std::string> nodes;
    for (const OfferedGrant& granted : offer.granted) nodes.insert(granted.grant.source_node);
    return nodes;
  }
  using Nodes = std::set<std::string>;

  std::map<std::string, std::vector<std::string>> held_;
  std::map<std::string, std::vector<std::string>> given_up_;
};

TEST_F(FillingSources, UnverifiedReplica_IsNeitherSourceNorCopy) {
  Have("root");
  ReplicaInfo unverified = SomeReplica("r-a", "x", LocationKind::kGpu);
  unverified.chunks_unverified = 1;
  Update("a", {unverified});
  EXPECT_EQ(NodesOf(Ask("b")), Nodes{"root"});
  EXPECT_FALSE(directory_.evictions().Request(Id("root"), "r-root", now_)->granted) << "it is the last copy";
  EXPECT_TRUE(directory_.evictions().Request(Id("a"), "r-a", now_)->granted);
}

TEST_F(FillingSources, FillingReplica_IsOfferedBesideReadyOne) {
  Have("root");
  Fill("a");
  EXPECT_EQ(NodesOf(Ask("a")), Nodes({"root"}));
  Fill("b");
  EXPECT_EQ(NodesOf(Ask("b")), Nodes({"root", "a"}));
}

TEST_F(FillingSources, ReceiverThatLooksAgain_GetsLaterReceiversAsSources) {
  Have("root");
  for (const char* node : {"a", "b", "c"}) Fill(node);
  const GrantOffer first = Ask("a");
  EXPECT_THAT(first.granted, SizeIs(2));
  EXPECT_LT(first.look_again, absl::Seconds(1));
  EXPECT_THAT(Ask("a").granted, SizeIs(1)) << "the last of root, b and c";
}

TEST_F(FillingSources, ReceiversAmongManyFullSources_FindFreeSlots) {
  Have("root");
  Ask("a");
  for (int i = 0; i < 100; ++i) {
    const std::string node = absl::StrCat("n", i);
    Register(node);
    Fill(node);
    // The later come while the earlier have no slot left: they serve their own kind first.
    for (int look = 0; look < 3; ++look) Ask(node, /*sources=*/2);
  }
  uint32_t short_of_slots = 0;
  for (int i = 0; i < 100; ++i) short_of_slots += held_[absl::StrCat("n", i)].size() < 6 ? 1 : 0;
  EXPECT_LE(short_of_slots, 10u) << "there are seven slots for every six that are wanted";
}

TEST_F(FillingSources, SlotsOfOneArtifact_AreNotTakenByAnother) {
  Publish("y");
  Have("root");
  Update("root", {SomeReplica("s-root", "y")});
  for (int i = 0; i < 7; ++i) {
    const std::string node = absl::StrCat("n", i);
    Register(node);
    Fill(node);
    // Each asks until it has all: then the root has no slot left for x.
    while (!Ask(node).granted.empty()) {
    }
    // Of y each node has as many sources as it would have if no node wanted x.
    Update(node, {SomeReplica("s-" + node, "y", LocationKind::kCpu, ReplicaState::kFilling)});
    const auto of_y = directory_.transfers().RequestGrant(
        {.receiver = Id(node), .artifact_id = "y", .destination = {.kind = LocationKind::kCpu}, .sources = 4},
        now_);
    ASSERT_TRUE(of_y.ok()) << of_y.status();
    ASSERT_THAT(of_y->granted, SizeIs(i == 0 ? 1 : 2)) << node;
    EXPECT_EQ(NodesOf(*of_y).count("root"), 1u) << node;
  }
}

// One slot each, and none free but at one node of four hundred: a look sees a part of them.
class FewSlots : public FillingSources {
 protected:
  FewSlots() : FillingSources({.transfers = {.soft_grants_per_source = 1, .filling_lanes = {"ucx"}}}) {}
};

TEST_F(FewSlots, FreeSlotAmongManyFullSources_IsFoundByRepeatedRequests) {
  for (int i = 0; i < 400; ++i) {
    Register(absl::StrCat("n", i));
    Have(absl::StrCat("n", i));
  }
  for (int i = 0; i < 30; ++i) {
    const std::string node = absl::StrCat("takes", i);
    Register(node);
    while (!Ask(node, /*sources=*/100).granted.empty()) {
    }
  }
  Register("free");
  Have("free");
  int looked = 0;
  int found = 0;
  for (int i = 0; i < 40; ++i) {
    const std::string node = absl::StrCat("looks", i);
    Register(node);
    Fill(node);
    const GrantOffer first = Ask(node, /*sources=*/1);
    ASSERT_THAT(first.granted, SizeIs(1)) << "no receiver is turned away";
    if (NodesOf(first) == Nodes({"free"})) {
      GiveBack(node, first);
      Drop(node);
      continue;
    }
    ++looked;
    for (int look = 0; look < 6; ++look) {
      const GrantOffer offer = Ask(node, /*sources=*/1);
      if (offer.granted.empty()) continue;
      EXPECT_EQ(NodesOf(offer), Nodes({"free"}));
      GiveBack(node, offer);
      ++found;
      break;
    }
    Drop(node);  // so that it is not a source for the next
  }
  EXPECT_GE(looked, 20);
  EXPECT_GE(found * 10, looked * 7) << "a look sees a third of them";
}

TEST_F(FewSlots, FreeSlotsAmongManySources_AreFoundByEveryReceiver) {
  for (int i = 0; i < 2000; ++i) {
    Register(absl::StrCat("n", i));
    Have(absl::StrCat("n", i));
  }
  Nodes taken;
  for (int i = 0; i < 1600; ++i) {
    const std::string node = absl::StrCat("takes", i);
    Register(node);
    const Nodes given = NodesOf(Ask(node, /*sources=*/1));
    ASSERT_THAT(given, SizeIs(1));
    EXPECT_TRUE(taken.insert(*given.begin()).second)
        << node << " is given one without a free slot; others have " << 2000 - i;
  }
}

TEST_F(FillingSources, FillingReplica_IsNotOfferedWithoutSharedLane) {
  Have("root");
  NodeFacts other = SomeNode("other");
  other.lanes = {"rdma"};
  Register(other);
  Fill("other");
  other.node_id = other.name = "asks";
  Register(other);
  EXPECT_THAT(Ask("asks").granted, IsEmpty());
}

TEST_F(FillingSources, FillingSource_IsHostMemoryOfKnownArtifact) {
  Update("a", {SomeReplica("r1", "x", LocationKind::kGpu, ReplicaState::kFilling),
               SomeReplica("r2", "x", LocationKind::kDisk, ReplicaState::kFilling),
               SomeReplica("r3", "", LocationKind::kCpu, ReplicaState::kFilling),
               SomeReplica("r4", "x", LocationKind::kCpu, ReplicaState::kAllocating)});
  EXPECT_THAT(Ask("b").granted, IsEmpty());
}

TEST_F(FillingSources, FillingReplica_DoesNotCountAsCopy) {
  Have("root");
  Fill("a");
  EXPECT_FALSE(Evict("root", "r-root").granted);
  Have("a");
  EXPECT_TRUE(Evict("root", "r-root").granted);
}

TEST_F(FillingSources, FailedFillingSource_RevokesItsGrants) {
  Have("root");
  Fill("a");
  Ask("a");
  Ask("b");
  Drop("a");
  const auto ended = directory_.transfers().grants().TakeEnded();
  ASSERT_THAT(ended, SizeIs(1));
  EXPECT_EQ(ended[0].end, GrantEnd::kRevoked);
  EXPECT_EQ(ended[0].grant.receiver_node, "b");
}

TEST_F(FillingSources, SourceThatPullsOnlyFromReceiver_IsNotOffered) {
  Have("root");
  Fill("a");
  ASSERT_EQ(NodesOf(Ask("a")), Nodes({"root"}));
  Update("root", {SomeReplica("r-root", "x", LocationKind::kCpu, ReplicaState::kDraining)});
  Fill("b");
  ASSERT_EQ(NodesOf(Ask("b")), Nodes({"a"}));
  Fill("c");
  ASSERT_EQ(NodesOf(Ask("c", /*sources=*/1)), Nodes({"b"}));
  EXPECT_THAT(Ask("a").granted, IsEmpty()) << "b has nothing but from it, and c nothing but from b";
}

TEST_F(FillingSources, CircleWithoutRoot_IsNotWaitedForAndEnds) {
  Have("root");
  for (const char* node : {"a", "b", "c"}) {
    Fill(node);
    Ask(node);
  }
  for (const char* node : {"a", "b", "c"}) Ask(node);  // now each has all others
  Drop("root");
  // Each has only the others, and they bring it nothing: it gives them up, and asks.
  bool ended = false;
  for (int round = 0; round < 20 && !ended; ++round) {
    for (const char* node : {"a", "b", "c"}) {
      for (const std::string& grant_id : held_[node]) {
        if (const Grant* grant = directory_.transfers().grants().Find(grant_id)) {
          given_up_[node].push_back(grant->replica_id);
        }
        ASSERT_TRUE(
            directory_.transfers().CompleteGrant(Id(node), grant_id, GrantEnd::kFailed, false, now_).ok());
      }
      held_[node].clear();
      const GrantOffer offer = Ask(node);
      if (offer.granted.empty() && offer.retry_after == absl::ZeroDuration()) {
        Drop(node);
        ended = true;
        break;
      }
      now_ += absl::Milliseconds(500);
    }
  }
  EXPECT_TRUE(ended);
}

TEST_F(FillingSources, FillingReplicaWithoutRoot_IsOfferedForItsChunks) {
  Have("root");
  Fill("a");
  Ask("a");
  Fill("b");
  Ask("b");
  Drop("root");
  Fill("b", /*chunks_present=*/3);
  Fill("c");
  EXPECT_EQ(NodesOf(Ask("c", /*sources=*/1)), Nodes({"b"})) << "a and b lead nowhere, but b has something";
}

// Replicas without a transfer that brings the rest.
class PartialSources : public FillingSources {
 protected:
  void Rest(const std::string& node, uint32_t chunks_present = 3) {
    ReplicaInfo replica = SomeReplica("r-" + node, "x", LocationKind::kCpu, ReplicaState::kPartial);
    replica.chunks_present = chunks_present;
    Update(node, {replica});
  }
};

TEST_F(PartialSources, PartialReplicaWithoutWholeOne_IsGrantedOnce) {
  Have("root");
  Rest("a");
  EXPECT_EQ(NodesOf(Ask("b", /*sources=*/1)), Nodes({"root"}));
  ASSERT_TRUE(
      directory_.transfers().CompleteGrant(Id("b"), held_["b"].front(), GrantEnd::kFailed, false, now_).ok());
  held_["b"].clear();
  Drop("root");
  Fill("b");
  EXPECT_EQ(NodesOf(Ask("b")), Nodes({"a"}));
  const auto again = directory_.transfers().RequestGrant(
      {.receiver = Id("b"), .artifact_id = "x", .destination = {}, .slow_replicas = {"r-a"}}, now_);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_THAT(again->granted, IsEmpty());
  EXPECT_EQ(again->retry_after, absl::ZeroDuration()) << "no transfer brings more of it: nothing to wait for";
}

TEST_F(PartialSources, PartialReplica_IsOfferedBesideWholeOne) {
  Have("root");
  for (const char* node : {"a", "c"}) Rest(node);
  Fill("b");
  const Nodes first = NodesOf(Ask("b"));
  EXPECT_THAT(first, SizeIs(2));
  EXPECT_EQ(first.count("root"), 1u);
  EXPECT_THAT(Ask("b").granted, SizeIs(1)) << "the other one";
  Register("d");
  EXPECT_EQ(NodesOf(Ask("d", /*sources=*/2)), Nodes({"root", "b"})) << "but after what leads to the rest";
}

TEST_F(PartialSources, PartialSource_DoesNotHideWholeSourceWithoutSlots) {
  Rest("a");
  Fill("b");
  ASSERT_EQ(NodesOf(Ask("b")), Nodes({"a"}));
  Have("root");
  for (int i = 0; i < 7; ++i) {
    Register(absl::StrCat("n", i));
    Ask(absl::StrCat("n", i), /*sources=*/1);
  }
  EXPECT_EQ(NodesOf(Ask("b", /*sources=*/1)), Nodes({"root"})) << "it has no slot free, but all of it";
}

TEST_F(PartialSources, PartialReplicasWithoutWholeOne_AreAllGranted) {
  for (const char* node : {"a", "c"}) Rest(node);
  Fill("b");
  EXPECT_THAT(Ask("b").granted, SizeIs(1));
  EXPECT_THAT(Ask("b").granted, SizeIs(1));
  EXPECT_THAT(Ask("b").granted, IsEmpty());
}

TEST_F(PartialSources, PartialReplicaOnSameHost_DoesNotHideWholeOneElsewhere) {
  Have("root");
  for (const char* node : {"a", "b"}) {
    NodeFacts facts = SomeNode(node);
    facts.host_id = "host";
    Register(facts);
  }
  Rest("a");
  Fill("b");
  EXPECT_EQ(NodesOf(Ask("b")), Nodes({"root", "a"}));
}

TEST_F(PartialSources, PartialReplicaWithoutChunks_IsNotOffered) {
  Rest("a", /*chunks_present=*/0);
  EXPECT_THAT(Ask("b").granted, IsEmpty());
}

TEST_F(PartialSources, PartialReplica_IsNotFollowedForMissingChunks) {
  Rest("a");
  Fill("b");
  EXPECT_EQ(NodesOf(Ask("b")), Nodes({"a"}));
  EXPECT_EQ(NodesOf(Ask("c")), Nodes({"a"})) << "b has nothing yet, and gets no more than a has";
  Fill("b", /*chunks_present=*/1);
  given_up_["root"] = {"r-a"};
  EXPECT_EQ(NodesOf(Ask("root")), Nodes({"b"})) << "what it has, it gives";
}

TEST_F(PartialSources, PartialReplicaThatFillsAgain_IsOfferedLikeFillingOne) {
  Rest("a");
  Fill("b");
  ASSERT_EQ(NodesOf(Ask("b")), Nodes({"a"}));
  Have("root");
  Fill("a", /*chunks_present=*/3);
  ASSERT_EQ(NodesOf(Ask("a", /*sources=*/1)), Nodes({"root"}));
  given_up_["c"] = {"r-b"};
  EXPECT_EQ(NodesOf(Ask("c")), Nodes({"root", "a"}));
}

TEST_F(PartialSources, PartialReplica_IsEvictedThoughNoCopyRemains) {
  Have("root");
  Rest("a");
  EXPECT_FALSE(Evict("root", "r-root").granted);
  EXPECT_TRUE(Evict("a", "r-a").granted);
  EXPECT_EQ(NodesOf(Ask("b")), Nodes({"root"})) << "it may be gone any moment";
}

TEST_F(PartialSources, DrainingNode_EvictsUnpinnedPartialReplica) {
  Rest("a");
  ReplicaInfo pinned = SomeReplica("r-b", "x", LocationKind::kCpu, ReplicaState::kPartial);
  pinned.pinned = true;
  Update("b", {pinned});
  for (const char* node : {"a", "b"}) ASSERT_TRUE(directory_.DrainNode(node, true).ok());
  EXPECT_THAT(Beat("a").evict_replicas, ::testing::ElementsAre("r-a"));
  EXPECT_THAT(Beat("b").evict_replicas, IsEmpty());
}

TEST_F(PartialSources, PartialReplicaOfDeletedArtifact_IsForgotten) {
  Rest("a");
  Delete("x");
  EXPECT_THAT(Beat("a").forgotten_artifacts, ::testing::ElementsAre("x"));
}

TEST_F(PartialSources, PartialReplica_DoesNotCompleteReplicationTask) {
  Rest("a");
  const auto plan = directory_.tasks().Prepare(
      {.request_id = "q", .artifact_id = "x", .targets = {{.node = "a", .location = {}}}}, wall_now());
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_THAT(plan->places, SizeIs(1));
  EXPECT_TRUE(plan->places.front().task.has_value());
}

TEST_F(FillingSources, Receivers_GetDifferentSharesOfOneReplica) {
  Have("root");
  std::set<uint32_t> shares;
  for (const char* node : {"a", "b", "c"}) {
    const GrantOffer offer = Ask(node);
    ASSERT_THAT(offer.granted, SizeIs(1));
    EXPECT_LT(offer.granted.front().share, offer.granted.front().shares);
    shares.insert(offer.granted.front().share);
  }
  EXPECT_THAT(shares, SizeIs(3));
  ASSERT_TRUE(
      directory_.transfers().CompleteGrant(Id("b"), held_["b"].front(), GrantEnd::kFailed, false, now_).ok());
  held_["b"].clear();
  EXPECT_THAT(shares, ::testing::Contains(Ask("b").granted.front().share)) << "the one that is free again";
}

TEST_F(FillingSources, ReceiverWithFewSources_IsToldToLookAgainLaterEachTime) {
  Have("root");
  Fill("a");
  absl::Duration last = absl::ZeroDuration();
  for (int look = 0; look < 6; ++look) {
    const GrantOffer offer = Ask("a");
    ASSERT_LT(offer.look_again, absl::InfiniteDuration());
    EXPECT_GT(offer.look_again, last);
    last = offer.look_again;
    now_ += last;
  }
  EXPECT_EQ(Ask("a").look_again, absl::InfiniteDuration());
}

TEST_F(FillingSources, ReceiverWithAllSources_IsNotToldToLookAgain) {
  NodeFacts facts = SomeNode("a");
  facts.labels["link_mbit"] = "1000";  // else it would look again to be measured
  Register(facts);
  Have("root");
  Have("b");
  Fill("a");
  EXPECT_EQ(Ask("a", /*sources=*/2).look_again, absl::InfiniteDuration());
}

}  // namespace
}  // namespace tensorcast::global_store::filling_sources_test
