// Daemons of one host that want one artifact: one pulls it over the network, and the others wait for it
// briefly and copy from it; the next one takes over when it gives nothing.
#include <set>

#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store::hostmates_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSubsetOf;
using ::testing::Not;

constexpr absl::Duration kTurn = absl::Milliseconds(500);

class Hostmates : public DirectoryTest {
 protected:
  using Nodes = std::set<std::string>;

  Hostmates() : DirectoryTest({.transfers = {.filling_lanes = {"ucx"}}}) {}
  void SetUp() override {
    Publish("x");
    Register("root");
    Update("root", {SomeReplica("r-root", "x")});
    for (const char* node : {"a", "b", "c", "d"}) RegisterOn("host", node);
  }
  void RegisterOn(const std::string& host, const std::string& node) {
    NodeFacts facts = SomeNode(node);
    facts.host_id = host;
    Register(facts);
  }
  void Fill(const std::string& node) {
    Update(node, {SomeReplica("r-" + node, "x", LocationKind::kCpu, ReplicaState::kFilling)});
  }
  GrantOffer Ask(const std::string& receiver, const Nodes& stalled = {},
                 LocationKind to = LocationKind::kCpu) {
    GrantRequest request{.receiver = Id(receiver),
                         .artifact_id = "x",
                         .destination = {.kind = to},
                         .excluded_replicas = given_up_[receiver],
                         .sources = static_cast<uint32_t>(held_[receiver].size()) + 6,
                         .held_grants = held_[receiver]};
    for (const std::string& node : stalled) request.slow_replicas.push_back("r-" + node);
    auto offer = directory_.transfers().RequestGrant(request, now_);
    EXPECT_TRUE(offer.ok()) << offer.status();
    for (const OfferedGrant& granted : offer->granted) held_[receiver].push_back(granted.grant.grant_id);
    return *std::move(offer);
  }
  void GiveUpAll(const std::string& receiver) {
    for (const std::string& grant_id : held_[receiver]) {
      ASSERT_TRUE(
          directory_.transfers().CompleteGrant(Id(receiver), grant_id, GrantEnd::kFailed, false, now_).ok());
    }
    held_[receiver].clear();
  }
  static Nodes NodesOf(const GrantOffer& offer) {
    Nodes nodes;
    for (const OfferedGrant& granted : offer.granted) nodes.insert(granted.grant.source_node);
    return nodes;
  }
  static bool MustWait(const GrantOffer& offer) {
    return offer.granted.empty() && offer.retry_after > absl::ZeroDuration();
  }

  std::map<std::string, std::vector<std::string>> held_;
  std::map<std::string, std::vector<std::string>> given_up_;
};

TEST_F(Hostmates, Hostmates_WaitForPullingNodeAndCopyFromIt) {
  ASSERT_EQ(NodesOf(Ask("a")), Nodes({"root"}));
  for (const char* node : {"b", "c"}) {
    const GrantOffer offer = Ask(node);
    EXPECT_TRUE(MustWait(offer));
    EXPECT_THAT(offer.no_source_reason, HasSubstr("node name-a in the same host"));
    EXPECT_THAT(offer.waiting_for, ElementsAre("the replica that begins to fill on node name-a"));
    EXPECT_LT(offer.retry_after, absl::Milliseconds(20)) << "mostly it is reported at once";
  }
  for (const char* node : {"a", "b", "c"}) Fill(node);
  for (const char* node : {"b", "c", "d"}) {
    EXPECT_THAT(NodesOf(Ask(node)), AllOf(Not(IsEmpty()), IsSubsetOf({"a", "b", "c"})));
  }
}

TEST_F(Hostmates, Hostmate_PullsItselfAfterHalfASecond) {
  Ask("a");
  Fill("b");
  const SteadyTime begin = now_;
  int asked = 0;
  GrantOffer offer = Ask("b");
  for (; MustWait(offer); offer = Ask("b"), ++asked) now_ += offer.retry_after;
  EXPECT_EQ(NodesOf(offer), Nodes({"root"}));
  EXPECT_EQ(now_ - begin, kTurn);
  EXPECT_LE(asked, 8);
}

TEST_F(Hostmates, Hostmates_TakeOverOneAfterAnother) {
  Ask("a");
  for (const char* node : {"b", "c"}) Fill(node);
  ASSERT_TRUE(MustWait(Ask("b", {"c"})));
  ASSERT_TRUE(MustWait(Ask("c", {"b"})));
  now_ += kTurn;
  EXPECT_EQ(NodesOf(Ask("b", {"c"})), Nodes({"root"}));
  EXPECT_EQ(NodesOf(Ask("c")), Nodes({"b"})) << "its turn has begun";
}

TEST_F(Hostmates, StalledPull_IsReplacedByOneHostmateForTheOthers) {
  Ask("a");
  Fill("a");
  for (const char* node : {"b", "c"}) {
    Fill(node);
    ASSERT_EQ(NodesOf(Ask(node)).count("root"), 0u);
    GiveUpAll(node);
    ASSERT_EQ(NodesOf(Ask(node, {"b", "c"})), Nodes({"a"}));
  }
  now_ += absl::Seconds(3);
  EXPECT_THAT(Ask("b").granted, Not(::testing::Contains(::testing::Field(
                                    &OfferedGrant::grant, ::testing::Field(&Grant::source_node, "root")))))
      << "a receiver with a source on its host that does not complain gets no other";
  GiveUpAll("b");
  ASSERT_EQ(NodesOf(Ask("b", {"c"})), Nodes({"a"}));
  EXPECT_EQ(NodesOf(Ask("b", {"a", "c"})), Nodes({"root"}));
  EXPECT_EQ(NodesOf(Ask("c", {"a"})), Nodes({"b"}));
  EXPECT_THAT(Ask("c", {"a", "b"}).granted, IsEmpty()) << "b was given sources only now";
  now_ += kTurn;
  EXPECT_EQ(NodesOf(Ask("c", {"a", "b"})), Nodes({"root"}));
}

TEST_F(Hostmates, StalledHost_GivesReceiverSourceElsewhere) {
  Ask("a");
  Fill("a");
  for (const char* node : {"b", "c", "d"}) Fill(node);
  ASSERT_THAT(NodesOf(Ask("b")), IsSubsetOf({"a", "c", "d"}));
  ASSERT_EQ(held_["b"].size(), 2u) << "one of them it does not hold";
  now_ += absl::Seconds(3);
  EXPECT_EQ(NodesOf(Ask("b", {"a", "c", "d"})), Nodes({"root"})) << "all said to be slow";
  GiveUpAll("b");
  now_ += kTurn;
  ASSERT_EQ(held_["b"].size(), 0u);
  const Nodes held = NodesOf(Ask("b"));
  ASSERT_THAT(held, IsSubsetOf({"a", "c", "d"}));
  EXPECT_EQ(NodesOf(Ask("b", held)), Nodes({"root"})) << "and so where the others were not asked yet";
}

TEST_F(Hostmates, RestartingHostmate_DoesNotExtendTheWait) {
  Fill("b");
  const SteadyTime begin = now_;
  GrantOffer offer;
  do {
    GiveUpAll("a");
    ASSERT_EQ(NodesOf(Ask("a", {"b"})), Nodes({"root"})) << "it begins again and again, and never fills";
    offer = Ask("b");
    now_ += absl::Milliseconds(100);
  } while (MustWait(offer) && now_ - begin < absl::Seconds(10));
  EXPECT_EQ(NodesOf(offer), Nodes({"root"}));
  EXPECT_LE(now_ - begin, kTurn + absl::Milliseconds(200));
}

TEST_F(Hostmates, HostmateThatCannotServe_IsNotWaitedFor) {
  Ask("a", {}, LocationKind::kGpu);
  EXPECT_EQ(NodesOf(Ask("b")), Nodes({"root"})) << "a GPU replica does not serve while it fills";
  NodeFacts other = SomeNode("e");
  other.host_id = "host";
  other.lanes = {"ucx", "rdma"};
  Register(other);
  RegisterOn("other host", "f");
  EXPECT_EQ(NodesOf(Ask("f")), Nodes({"root"})) << "they are not of its host";
}

TEST_F(Hostmates, HostmateThatPullsWithinHost_IsNotWaitedFor) {
  Update("d", {SomeReplica("r-d", "x", LocationKind::kDisk)});
  GiveUpAll("root");
  Update("root", {SomeReplica("r-root", "x", LocationKind::kCpu, ReplicaState::kGone)});
  ASSERT_EQ(NodesOf(Ask("a")), Nodes({"d"}));
  EXPECT_EQ(NodesOf(Ask("b")), Nodes({"d"}));
}

TEST_F(Hostmates, HostmateThatFailedOrLostItsGrant_IsNotWaitedFor) {
  Ask("a");
  Fill("a");
  given_up_["b"] = {"r-a"};
  EXPECT_EQ(NodesOf(Ask("b")), Nodes({"root"}));
  GiveUpAll("b");
  GiveUpAll("a");
  Update("a", {SomeReplica("r-a", "x", LocationKind::kCpu, ReplicaState::kFailed)});
  EXPECT_EQ(NodesOf(Ask("c")), Nodes({"root"}));
}

}  // namespace
}  // namespace tensorcast::global_store::hostmates_test
