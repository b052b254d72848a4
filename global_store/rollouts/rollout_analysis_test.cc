#include "global_store/rollouts/rollout_analysis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "absl/strings/str_cat.h"

namespace tensorcast::global_store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr SteadyTime kStart = SteadyTime();
SteadyTime At(double seconds) { return kStart + absl::Seconds(seconds); }

std::shared_ptr<const RolloutNode> Node(const std::string& id) {
  return std::make_shared<const RolloutNode>(RolloutNode{.id = id, .name = id});
}

RolloutHop Hop(const std::string& source, const std::string& receiver, double from, double to) {
  return {.receiver = Node(receiver),
          .source = source.empty() ? nullptr : Node(source),
          .lane = "tcp",
          .bytes = 1000,
          .begun = At(from),
          .ended = At(to)};
}

TEST(RolloutAnalysis, Tree_HasLevelsByDistance) {
  const std::vector<RolloutHop> hops = {Hop("seed", "a", 0, 2), Hop("seed", "b", 1, 3), Hop("a", "c", 2, 4),
                                        Hop("c", "d", 4, 6), Hop("", "e", 0, 1)};
  const RolloutAnalysis analysis = AnalyzeRollout(hops, 2, At(10));
  ASSERT_THAT(analysis.levels, SizeIs(3));
  EXPECT_EQ(analysis.levels[0].receivers, 3) << "one read its own files";
  EXPECT_EQ(analysis.levels[0].first_begun, At(0));
  EXPECT_EQ(analysis.levels[0].last_ended, At(3));
  EXPECT_EQ(analysis.levels[2].receivers, 1);
  EXPECT_EQ(analysis.ended, 5);
  EXPECT_THAT(analysis.critical_path, ElementsAre(0, 2, 3));
  EXPECT_THAT(analysis.slowest, SizeIs(2));
}

TEST(RolloutAnalysis, SlowHop_IsWorstByWhatItCosts) {
  const std::vector<RolloutHop> hops = {Hop("seed", "a", 0, 1), Hop("seed", "b", 0, 1),
                                        Hop("seed", "slow", 0, 9)};
  const RolloutAnalysis analysis = AnalyzeRollout(hops, 10, At(10));
  EXPECT_THAT(analysis.slowest.front(), 2);
  EXPECT_EQ(analysis.worst_hop, 2);
  EXPECT_EQ(analysis.worst_hop_costs, absl::Seconds(8)) << "then it would end with the others";
}

TEST(RolloutAnalysis, ChildrenOfFillingHop_ShiftWithIt) {
  // `mid` is slow; the leaf was fed while it filled, and is as slow for that.
  const std::vector<RolloutHop> hops = {Hop("seed", "a", 0, 1), Hop("seed", "b", 0, 1),
                                        Hop("seed", "c", 0, 1), Hop("seed", "mid", 0, 8),
                                        Hop("mid", "leaf", 0, 8.5)};
  const RolloutAnalysis analysis = AnalyzeRollout(hops, 10, At(10));
  EXPECT_THAT(analysis.critical_path, ElementsAre(3, 4));
  EXPECT_EQ(analysis.worst_hop, 3) << "mending the leaf alone saves half a second";
  EXPECT_EQ(analysis.worst_hop_costs, absl::Seconds(7));
}

TEST(RolloutAnalysis, ChildThatBeganLater_DoesNotShift) {
  const std::vector<RolloutHop> hops = {Hop("seed", "a", 0, 1), Hop("seed", "b", 0, 1),
                                        Hop("seed", "mid", 0, 5), Hop("mid", "leaf", 6, 7)};
  const RolloutAnalysis analysis = AnalyzeRollout(hops, 10, At(10));
  EXPECT_THAT(analysis.critical_path, ElementsAre(2, 3));
  EXPECT_EQ(analysis.worst_hop, std::nullopt) << "the leaf asked when it did, whatever its source";
}

TEST(RolloutAnalysis, EqualHops_HaveNoWorst) {
  const std::vector<RolloutHop> hops = {Hop("seed", "a", 0, 2), Hop("seed", "b", 0, 2)};
  EXPECT_EQ(AnalyzeRollout(hops, 10, At(10)).worst_hop, std::nullopt);
}

TEST(RolloutAnalysis, FewerBytes_ExcuseShorterTime) {
  std::vector<RolloutHop> hops = {Hop("seed", "a", 0, 2), Hop("seed", "b", 0, 2), Hop("seed", "c", 0, 6)};
  hops[2].bytes = 3000;
  EXPECT_EQ(AnalyzeRollout(hops, 10, At(10)).worst_hop, std::nullopt) << "it is as fast as the others";
}

TEST(RolloutAnalysis, HopUnderWay_CountsUntilNow) {
  std::vector<RolloutHop> hops = {Hop("seed", "a", 0, 1), Hop("seed", "b", 0, 1), Hop("seed", "stuck", 0, 0)};
  hops[2].ended = SteadyTime::InfiniteFuture();
  hops[2].bytes = 0;
  const RolloutAnalysis analysis = AnalyzeRollout(hops, 1, At(31));
  EXPECT_EQ(analysis.ended, 2);
  EXPECT_EQ(analysis.failed, 0);
  EXPECT_THAT(analysis.slowest, ElementsAre(2));
  EXPECT_EQ(analysis.worst_hop, 2);
  EXPECT_EQ(analysis.worst_hop_costs, absl::Seconds(30));
}

TEST(RolloutAnalysis, FailedHop_IsNotWaitedFor) {
  std::vector<RolloutHop> hops = {Hop("seed", "a", 0, 1), Hop("seed", "b", 0, 9)};
  hops[1].failed = true;
  const RolloutAnalysis analysis = AnalyzeRollout(hops, 10, At(10));
  EXPECT_EQ(analysis.failed, 1);
  EXPECT_THAT(analysis.critical_path, ElementsAre(0));
}

TEST(RolloutAnalysis, ReceiversThatFeedEachOther_AreCutWhereFirstEnded) {
  const std::vector<RolloutHop> hops = {Hop("b", "a", 0, 4), Hop("a", "b", 0, 3), Hop("a", "leaf", 0, 5)};
  const RolloutAnalysis analysis = AnalyzeRollout(hops, 10, At(10));
  EXPECT_THAT(analysis.critical_path, ElementsAre(1, 0, 2));
  EXPECT_THAT(analysis.levels, SizeIs(3));
}

TEST(RolloutAnalysis, SourceThatReceivedLater_HadItBefore) {
  const std::vector<RolloutHop> hops = {Hop("b", "a", 0, 1), Hop("seed", "b", 5, 6)};
  EXPECT_THAT(AnalyzeRollout(hops, 10, At(10)).levels, SizeIs(1));
}

TEST(RolloutAnalysis, NoHops_SayNothing) {
  const RolloutAnalysis analysis = AnalyzeRollout({}, 10, At(10));
  EXPECT_THAT(analysis.levels, IsEmpty());
  EXPECT_THAT(analysis.critical_path, IsEmpty());
  EXPECT_EQ(analysis.worst_hop, std::nullopt);
}

// A tree, a chain (the deepest there is) and a circle of 10,000 nodes with one slow hop each. The bound of
// the time is generous: it fails where the work grows with the square of the nodes.
TEST(RolloutAnalysis, LargeFleet_IsAnalyzedQuickly) {
  constexpr int kNodes = 10000;
  std::mt19937 random(7);
  std::uniform_real_distribution<double> takes(0.9, 1.1);
  const auto name = [](int node) { return absl::StrCat("node-", node); };
  std::vector<RolloutHop> tree;
  std::vector<RolloutHop> chain;
  for (int i = 1; i <= kNodes; ++i) {
    const double from = i < 8 ? 0 : 1;
    const bool slow = i == kNodes / 2;
    tree.push_back(Hop(name(i / 8), name(i), from, from + (slow ? 20 : takes(random))));
    chain.push_back(Hop(name(i - 1), name(i), i * 0.01, i * 0.01 + (i < kNodes / 2 ? 1 : 3) + i * 1e-6));
  }
  std::vector<RolloutHop> circle = chain;
  circle.front().source = circle.back().receiver;
  const SteadyTime began = SteadyNow();
  const RolloutAnalysis of_tree = AnalyzeRollout(tree, 10, At(100));
  const RolloutAnalysis of_chain = AnalyzeRollout(chain, 10, At(1000));
  const RolloutAnalysis of_circle = AnalyzeRollout(circle, 10, At(1000));
  const absl::Duration took = SteadyNow() - began;
  EXPECT_EQ(of_tree.worst_hop, kNodes / 2 - 1);
  EXPECT_NEAR(absl::ToDoubleSeconds(of_tree.worst_hop_costs), 18.9, 0.2);
  EXPECT_THAT(of_chain.critical_path, SizeIs(kNodes));
  EXPECT_THAT(of_circle.levels, SizeIs(kNodes));
  RecordProperty("microseconds", std::to_string(absl::ToInt64Microseconds(took)));
  EXPECT_LT(took, absl::Seconds(5));
}

}  // namespace
}  // namespace tensorcast::global_store
