// Nodes of one zone that want one artifact: one pulls it from another zone, the others pull from it.
#include <map>
#include <set>

#include "global_store/directory/directory_test_fixture.h"

namespace tensorcast::global_store::zones_test {
namespace {

class Zones : public DirectoryTest {
 protected:
  using Nodes = std::set<std::string>;

  static constexpr uint32_t kSources = 6;

  Zones() : DirectoryTest({.transfers = {.filling_lanes = {"ucx"}}}) {}
  void SetUp() override {
    Publish("x");
    for (const char* node : {"root", "r1"}) RegisterIn("near", node);
    for (const char* node : {"a", "b", "c"}) RegisterIn("far", node);
    Update("root", {SomeReplica("r-root", "x")});
  }
  void RegisterIn(const std::string& zone, const std::string& node) {
    NodeFacts facts = SomeNode(node);
    facts.labels["zone"] = zone;
    Register(facts);
  }
  // Asks as a receiver that fills; returns the nodes of which it was given replicas.
  Nodes Ask(const std::string& receiver, const std::vector<std::string>& given_up = {}) {
    Update(receiver, {SomeReplica("r-" + receiver, "x", LocationKind::kCpu, ReplicaState::kFilling)});
    auto offer = directory_.transfers().RequestGrant({.receiver = Id(receiver),
                                                      .artifact_id = "x",
                                                      .destination = {.kind = LocationKind::kCpu},
                                                      .excluded_replicas = given_up,
                                                      .sources = kSources,
                                                      .held_grants = held_[receiver]},
                                                     now_);
    EXPECT_TRUE(offer.ok()) << offer.status();
    if (!offer.ok()) return {};
    EXPECT_LE(offer->granted.size(), kSources);
    Nodes nodes;
    for (const OfferedGrant& granted : offer->granted) {
      nodes.insert(granted.grant.source_node);
      held_[receiver].push_back(granted.grant.grant_id);
    }
    return nodes;
  }

  std::map<std::string, std::vector<std::string>> held_;
};

TEST_F(Zones, SecondReceiverOfZone_PullsFromTheFirst) {
  EXPECT_EQ(Ask("a"), Nodes({"root"}));
  EXPECT_EQ(Ask("b"), Nodes({"a"}));
}

TEST_F(Zones, GivenUpPuller_IsReplacedByTheReceiver) {
  Ask("a");
  Ask("b");
  EXPECT_EQ(Ask("b", {"r-a"}), Nodes({"root"}));
}

TEST_F(Zones, HolderOfImageInItsZone_IsGivenNoneInAnother) {
  Ask("a");
  ASSERT_TRUE(Ask("r1").contains("root"));
  EXPECT_FALSE(Ask("r1").contains("a")) << "the source that it holds is in its zone";
}

// With one source across, the whole zone would have one upload slot's share of a link.
TEST_F(Zones, NewPuller_IsGivenAllItsSourcesAcrossBesideHeldOnes) {
  Nodes across;
  for (int i = 1; i <= 7; ++i) {
    const std::string node = absl::StrCat("near-", i);
    RegisterIn("near", node);
    Update(node, {SomeReplica("r-" + node, "x")});
    across.insert(node);
  }
  across.insert("root");
  Ask("a");
  ASSERT_EQ(Ask("b"), Nodes({"a"}));
  Ask("c");
  ASSERT_EQ(Ask("b"), Nodes({"c"}));
  const Nodes taken = Ask("b", {"r-a"});
  EXPECT_EQ(taken.size(), kSources);
  for (const std::string& node : taken) EXPECT_TRUE(across.contains(node)) << node;
}

}  // namespace
}  // namespace tensorcast::global_store::zones_test
