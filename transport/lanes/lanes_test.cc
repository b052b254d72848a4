#include "transport/lanes/lanes.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::transport {
namespace {

TEST(Lanes, EachDescribesItselfUnderANameOfItsOwn) {
  std::set<std::string_view> names;
  for (const Lane& lane : Lanes()) {
    EXPECT_TRUE(names.insert(lane.name).second) << lane.name;
    EXPECT_FALSE(lane.help.empty()) << lane.name;
    EXPECT_EQ(FindLane(lane.name), &lane);
  }
  EXPECT_EQ(FindLane("warp"), nullptr);
}

TEST(Lanes, TheLocalOneIsFirstAndNoTransport) {
  EXPECT_THAT(LaneNames(), ::testing::ElementsAre("local", "ucx-rma", "ucx"));
  EXPECT_THAT(TransportLaneNames(), ::testing::ElementsAre("ucx-rma", "ucx"));
}

TEST(Lanes, WhoMayReachThePoolMayBeSentAReplicaAndNotTheOtherWayRound) {
  for (const char* opens_pool : {"local", "ucx-rma"}) {
    EXPECT_TRUE(LaneCovers(opens_pool, opens_pool));
    EXPECT_TRUE(LaneCovers(opens_pool, "ucx"));
    EXPECT_TRUE(LaneCovers(opens_pool, "loopback"));
    EXPECT_FALSE(LaneCovers("ucx", opens_pool));
  }
  EXPECT_FALSE(LaneCovers("local", "ucx-rma"));
  EXPECT_FALSE(LaneCovers("ucx-rma", "local"));
  EXPECT_FALSE(LaneCovers("ucx", "loopback"));
}

TEST(Lanes, ATransportIsMadeUnderTheNameThatItIsListedBy) {
  const Lane* ucx = FindLane("ucx");
  ASSERT_NE(ucx, nullptr);
  auto transport = ucx->make({.ucx_listen = "127.0.0.1:0"});
  ASSERT_TRUE(transport.ok()) << transport.status();
  EXPECT_EQ((*transport)->name(), ucx->name);
}

}  // namespace
}  // namespace tensorcast::transport
