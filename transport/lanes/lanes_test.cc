#include "transport/lanes/lanes.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::transport {
namespace {

TEST(Lanes, Lanes_HaveUniqueNamesAndHelp) {
  std::set<std::string_view> names;
  for (const Lane& lane : Lanes()) {
    EXPECT_TRUE(names.insert(lane.name).second) << lane.name;
    EXPECT_FALSE(lane.help.empty()) << lane.name;
    EXPECT_EQ(FindLane(lane.name), &lane);
  }
  EXPECT_EQ(FindLane("warp"), nullptr);
}

TEST(Lanes, LaneNames_StartWithLocalWhichHasNoTransport) {
  EXPECT_THAT(LaneNames(), ::testing::ElementsAre("local", "ucx-rma", "ucx", "tcp"));
  EXPECT_THAT(TransportLaneNames(), ::testing::ElementsAre("ucx-rma", "ucx", "tcp"));
}

TEST(Lanes, LaneCovers_IsTrueFromPoolLanesToReplicaLanes) {
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

TEST(Lanes, MadeTransport_HasNameOfItsLane) {
  for (const char* name : {"ucx", "tcp"}) {
    const Lane* lane = FindLane(name);
    ASSERT_NE(lane, nullptr);
    auto transport =
        lane->make({.tcp_listen = "127.0.0.1:0", .ucx_listen = "127.0.0.1:0", .ucx_over_tcp = true});
    ASSERT_TRUE(transport.ok()) << transport.status();
    EXPECT_EQ((*transport)->name(), lane->name);
  }
}

TEST(Lanes, Lane_IsConfiguredByItsOwnListenAddress) {
  const LaneConfig tcp{.tcp_listen = "127.0.0.1:0"};
  const LaneConfig ucx{.ucx_listen = "127.0.0.1:0"};
  EXPECT_TRUE(FindLane("tcp")->configured(tcp));
  EXPECT_FALSE(FindLane("tcp")->configured(ucx));
  for (const char* name : {"ucx", "ucx-rma"}) {
    EXPECT_TRUE(FindLane(name)->configured(ucx));
    EXPECT_FALSE(FindLane(name)->configured(tcp));
  }
  for (const Lane& lane : Lanes()) {
    EXPECT_EQ(lane.listen == nullptr, lane.make == nullptr) << lane.name;
    EXPECT_EQ(lane.listen_key.empty(), lane.listen == nullptr) << lane.name;
  }
}

}  // namespace
}  // namespace tensorcast::transport
