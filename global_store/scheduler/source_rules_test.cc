#include "global_store/scheduler/source_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

namespace tensorcast::global_store::source_rules_test {
namespace {

struct Pair {
  LaneEnd receiver = {.host_id = "here", .zone = "z", .link_mbit = 10'000};
  LaneEnd better_end = {.host_id = "there", .zone = "z", .link_mbit = 10'000};
  LaneEnd worse_end = {.host_id = "elsewhere", .zone = "z", .link_mbit = 10'000};
  SourceQuery query = {.upload_slots = 4};
  SourceCandidate better;
  SourceCandidate worse;
  size_t better_lane = 1;
  size_t worse_lane = 1;
};

struct Difference {
  std::string rule;
  std::function<void(Pair&)> make;
};

// One for each rule: all that tells the two sources apart is what that rule looks at.
const std::vector<Difference> kDifferences = {
    {"not_given_up", [](Pair& pair) { pair.worse.slow = true; }},
    {"rooted", [](Pair& pair) { pair.worse.rooted = false; }},
    {"across_for_puller",
     [](Pair& pair) {
       pair.query.zone_role = ZoneRole::kPuller;
       pair.better_end.zone = "y";
       pair.worse_end.zone = "";
     }},
    {"not_draining", [](Pair& pair) { pair.worse.draining = true; }},
    {"fast_link", [](Pair& pair) { pair.worse_end.link_mbit = 4'999; }},
    {"leave_faster_links", [](Pair& pair) { pair.worse_end.link_mbit = 15'001; }},
    {"free_slot", [](Pair& pair) { pair.worse.uploads = 4; }},
    {"not_overtaken", [](Pair& pair) { pair.worse.overtaken = true; }},
    {"memory_before_disk", [](Pair& pair) { pair.worse.place = LocationKind::kDisk; }},
    {"same_host", [](Pair& pair) { pair.better_end.host_id = "here"; }},
    {"faster_lane", [](Pair& pair) { pair.worse_lane = 2; }},
    {"nearer", [](Pair& pair) { pair.worse_end.zone = "y"; }},
    {"ready_before_filling", [](Pair& pair) { pair.worse.filling = true; }},
    {"cheaper_place", [](Pair& pair) { pair.worse.place = LocationKind::kGpu; }},
    {"less_loaded", [](Pair& pair) { pair.worse.active_grants = 1; }},
    {"tie", [](Pair& pair) { pair.worse.tie = 1; }},
};

// The names of the rules that prefer the better one, and of those that prefer the worse.
std::array<std::vector<std::string>, 2> Judge(Pair& pair) {
  pair.query.receiver = &pair.receiver;
  pair.better.end = &pair.better_end;
  pair.worse.end = &pair.worse_end;
  std::array<std::vector<std::string>, 2> judged;
  for (const SourceRule& rule : SourceRules()) {
    const uint64_t better = rule.cost({pair.query, pair.better, pair.better_lane});
    const uint64_t worse = rule.cost({pair.query, pair.worse, pair.worse_lane});
    if (better != worse) judged[better < worse ? 0 : 1].emplace_back(rule.name);
  }
  return judged;
}

TEST(SourceRules, EachRule_PrefersTheBetterOfItsPair) {
  std::vector<std::string> tested;
  for (const Difference& difference : kDifferences) {
    Pair pair;
    difference.make(pair);
    const auto [better, worse] = Judge(pair);
    ASSERT_FALSE(better.empty()) << difference.rule;
    EXPECT_EQ(better.front(), difference.rule);
    EXPECT_TRUE(worse.empty()) << difference.rule << ": also " << worse.front();
    tested.push_back(difference.rule);
  }
  std::vector<std::string> all;
  for (const SourceRule& rule : SourceRules()) all.emplace_back(rule.name);
  EXPECT_EQ(tested, all) << "a rule has one pair here, in the order of the rules";
}

TEST(SourceRules, LoadOfFillingSource_CountsFromTheSecondSource) {
  Pair pair;
  pair.better.filling = pair.worse.filling = true;
  pair.worse.active_grants = 1;
  EXPECT_TRUE(Judge(pair)[0].empty());
  pair.query.has_source = true;
  EXPECT_THAT(Judge(pair)[0], testing::ElementsAre("less_loaded"));
}

TEST(SourceRules, PartOnOwnHost_IsAsGoodAsRootedBesideSource) {
  Pair pair;
  pair.better_end.host_id = "here";
  pair.better.partial = pair.better.filling = pair.worse.filling = true;
  pair.better.rooted = false;
  EXPECT_THAT(Judge(pair)[1], testing::ElementsAre("rooted"));
  pair.query.has_source = true;
  EXPECT_THAT(Judge(pair)[0], testing::ElementsAre("same_host"));
  EXPECT_TRUE(Judge(pair)[1].empty());
}

TEST(SourceRules, CheaperPlace_IsAGpuForAGpuOverTheLocalLane) {
  Pair pair;
  pair.query.destination = LocationKind::kGpu;
  pair.better_lane = pair.worse_lane = 0;
  pair.better.place = LocationKind::kGpu;
  EXPECT_THAT(Judge(pair)[0], testing::ElementsAre("cheaper_place"));
}

}  // namespace
}  // namespace tensorcast::global_store::source_rules_test
