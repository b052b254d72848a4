// Nodes with different rates: the rate that a node reports, or that was measured, affects the choice of its
// sources.
#include <set>
#include <string>

#include "global_store/directory/directory_test_fixture.h"
#include "global_store/scheduler/link_rates.h"

namespace tensorcast::global_store::rates_test {
namespace {

class Rates : public DirectoryTest {
 protected:
  using Nodes = std::set<std::string>;

  Rates() : DirectoryTest({.transfers = {.filling_lanes = {"ucx"}}}) {}
  void SetUp() override { Publish("x"); }
  void Join(const std::string& node, const std::string& link_mbit) {
    NodeFacts facts = SomeNode(node);
    if (!link_mbit.empty()) facts.labels["link_mbit"] = link_mbit;
    Register(facts);
  }
  void Hold(const std::string& node, const std::string& link_mbit) {
    Join(node, link_mbit);
    Update(node, {SomeReplica("r-" + node, "x")});
  }
  // Asks as a receiver that fills; returns the nodes of which it was given replicas.
  Nodes Ask(const std::string& receiver, uint32_t sources, uint64_t received_mbit = 0) {
    Update(receiver, {SomeReplica("r-" + receiver, "x", LocationKind::kCpu, ReplicaState::kFilling)});
    auto offer = directory_.transfers().RequestGrant({.receiver = Id(receiver),
                                                      .artifact_id = "x",
                                                      .destination = {.kind = LocationKind::kCpu},
                                                      .sources = sources,
                                                      .received_mbit = received_mbit,
                                                      .held_grants = held_[receiver]},
                                                     now_);
    EXPECT_TRUE(offer.ok()) << offer.status();
    Nodes nodes;
    if (!offer.ok()) return nodes;
    for (const OfferedGrant& granted : offer->granted) {
      nodes.insert(granted.grant.source_node);
      held_[receiver].push_back(granted.grant.grant_id);
    }
    look_again_ = offer->look_again;
    return nodes;
  }
  uint32_t UploadsOf(const std::string& node) {
    return directory_.transfers().grants().Of(node).UploadsOf("x");
  }

  std::map<std::string, std::vector<std::string>> held_;
  absl::Duration look_again_;
};

// A slow source does not count as one of those that the transfer wants.
TEST_F(Rates, SlowSources_AreHeldBesideAllThatAreWanted) {
  Join("taker", "10000");
  Hold("slow", "1000");
  Hold("fast-1", "10000");
  EXPECT_EQ(Ask("taker", 2), Nodes({"fast-1", "slow"}));
  EXPECT_LT(look_again_, absl::InfiniteDuration());
  EXPECT_EQ(Ask("taker", 2), Nodes());
  Hold("fast-2", "unknown");
  EXPECT_EQ(Ask("taker", 2), Nodes({"fast-2"}));
  EXPECT_EQ(look_again_, absl::InfiniteDuration());
}

TEST_F(Rates, UnlabelledNode_IsSlowAsMeasuredForTenMinutes) {
  for (const std::string node : {"taker", "slow", "fast"}) Join(node, "");
  Hold("root", "");
  Ask("slow", 1, /*received_mbit=*/100);
  Ask("fast", 1, /*received_mbit=*/1000);
  EXPECT_TRUE(
      HasSlowLink(directory_.membership().Find("fast")->end, directory_.membership().Find("slow")->end));
  Update("root", {SomeReplica("r-root", "x", LocationKind::kCpu, ReplicaState::kFailed)});
  for (const std::string node : {"slow", "fast"}) Update(node, {SomeReplica("r-" + node, "x")});
  EXPECT_EQ(Ask("taker", 1, /*received_mbit=*/1000), Nodes({"fast"}));
  now_ += absl::Minutes(11);
  for (const std::string node : {"taker", "slow", "fast", "root"}) Beat(node);
  directory_.Tick(now_);
  EXPECT_EQ(RateOf(directory_.membership().Find("slow")->end), 0u);
}

TEST_F(Rates, UnlabelledReceiver_LooksAgainToBeMeasured) {
  Join("labelled", "1000");
  Join("unlabelled", "");
  Hold("root", "1000");
  Ask("labelled", 1);
  EXPECT_EQ(look_again_, absl::InfiniteDuration());
  for (int look = 0; look < 4; ++look) {
    Ask("unlabelled", 1);
    EXPECT_LT(look_again_, absl::InfiniteDuration()) << look;
  }
  Ask("unlabelled", 1);
  EXPECT_EQ(look_again_, absl::InfiniteDuration());
}

TEST_F(Rates, MeasuredRate_ChangesSlotsThatReceiverTakes) {
  Hold("root", "1000");
  for (int i = 0; i < 4; ++i) {
    const std::string node = absl::StrCat("taker-", i);
    Join(node, "");
    Ask(node, 1);
  }
  EXPECT_EQ(UploadsOf("root"), 4u);
  for (int i = 0; i < 4; ++i) Ask(absl::StrCat("taker-", i), 1, /*received_mbit=*/100);
  EXPECT_EQ(UploadsOf("root"), 1u) << "a quarter each";
}

}  // namespace
}  // namespace tensorcast::global_store::rates_test
