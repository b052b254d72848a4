#include "transport/lanes/lanes.h"

#include <cstdlib>
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

TEST(Lanes, FillingLaneNames_LeaveOutOneSidedReads) {
  EXPECT_THAT(FillingLaneNames(), ::testing::ElementsAre("local", "ucx", "tcp"));
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
  setenv("TENSORCAST_TEST_UCX_OVER_TCP", "1", /*overwrite=*/1);
  for (const char* name : {"ucx", "tcp"}) {
    const Lane* lane = FindLane(name);
    ASSERT_NE(lane, nullptr);
    auto transport = lane->make({.values = {{std::string(lane->listen_key), {"127.0.0.1:0"}}}});
    ASSERT_TRUE(transport.ok()) << transport.status();
    EXPECT_EQ((*transport)->name(), lane->name);
    EXPECT_LE((*transport)->memory(), lane->memory);
  }
}

TEST(Lanes, Lane_IsConfiguredByItsOwnListenAddress) {
  const LaneConfig tcp{.values = {{"daemon.tcp_listen", {"127.0.0.1:0"}}}};
  const LaneConfig ucx{.values = {{"daemon.ucx_listen", {"127.0.0.1:0"}}}};
  EXPECT_TRUE(FindLane("tcp")->configured(tcp));
  EXPECT_FALSE(FindLane("tcp")->configured(ucx));
  for (const char* name : {"ucx", "ucx-rma"}) {
    EXPECT_TRUE(FindLane(name)->configured(ucx));
    EXPECT_FALSE(FindLane(name)->configured(tcp));
  }
  for (const Lane& lane : Lanes()) {
    EXPECT_EQ(lane.listen_key.empty(), lane.make == nullptr) << lane.name;
    EXPECT_EQ(lane.listen_key.empty(), lane.keys.empty()) << lane.name;
  }
}

}  // namespace
}  // namespace tensorcast::transport
