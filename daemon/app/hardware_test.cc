#include "daemon/app/hardware.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/loopback/loopback_transport.h"

namespace tensorcast::daemon {
namespace {

using ::testing::HasSubstr;

TEST(Broadcasts, OpenBroadcaster_ReturnsNullWithoutCudaDevices) {
  const DaemonOptions options{.broadcasts = {.argv = {"tensorcast"}}};
  const auto fake = OpenDevices({.runtime = "fake", .fake_devices = 4});
  ASSERT_TRUE(fake.ok()) << fake.status();
  EXPECT_EQ(OpenBroadcaster(options, fake->get()), nullptr);
  EXPECT_EQ(OpenBroadcaster(options, CreateNullRuntime().get()), nullptr);
}

class Lanes : public ::testing::Test {
 protected:
  void SetUp() override {
    auto pool = HostPool::Create({.bytes = uint64_t{8} << 20, .use_huge_pages = false});
    ASSERT_TRUE(pool.ok()) << pool.status();
    pool_ = *std::move(pool);
  }

  std::unique_ptr<HostPool> pool_;
};

TEST_F(Lanes, OpenLanes_KeepsConfiguredOrder) {
  std::vector<std::string> asked;
  DaemonOptions options{.lanes = {"b", "a"}};
  options.make_transport = [&](std::string_view lane) {
    asked.emplace_back(lane);
    return transport::NewLoopbackTransport();
  };
  const auto lanes = OpenLanes(options, /*devices=*/nullptr, *pool_);
  ASSERT_TRUE(lanes.ok()) << lanes.status();
  EXPECT_EQ(lanes->size(), 2u);
  EXPECT_THAT(asked, ::testing::ElementsAre("b", "a"));
}

TEST_F(Lanes, UnknownLane_IsRefusedByName) {
  for (const char* name : {"warp", "local"}) {
    const absl::Status refused = OpenLanes({.lanes = {name}}, /*devices=*/nullptr, *pool_).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(absl::StrCat("lane ", name, ": ")));
  }
}

TEST_F(Lanes, FailedLane_EndsStartAndNamesTheLane) {
  DaemonOptions options{.lanes = {"a"}};
  options.make_transport = [](std::string_view) -> absl::StatusOr<std::unique_ptr<transport::Transport>> {
    return absl::UnavailableError("no cable");
  };
  const absl::Status refused = OpenLanes(options, /*devices=*/nullptr, *pool_).status();
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_EQ(refused.message(), "open the lane a: no cable");
}

TEST(Link, LinkMbit_IsMinOfInterfaceSpeedAndSendLimit) {
  const std::filesystem::path sysfs = std::filesystem::path(::testing::TempDir()) / "hardware_test_sysfs";
  std::filesystem::create_directories(sysfs / "class/net/lo");
  const auto says = [&](const std::string& speed) {
    std::ofstream(sysfs / "class/net/lo/speed") << speed << "\n";
  };
  DaemonOptions options{.listen = "127.0.0.1:0"};
  says("10000");
  EXPECT_EQ(LinkMbit(options, sysfs), 10'000u);
  options.lane_config.send_limit = 125'000'000;
  EXPECT_EQ(LinkMbit(options, sysfs), 1'000u);
  says("-1");
  EXPECT_EQ(LinkMbit(options, sysfs), 1'000u);
  options.lane_config.send_limit = 0;
  EXPECT_EQ(LinkMbit(options, sysfs), 0u) << "unknown";
  says("25000");
  options.lane_config.values["daemon.tcp_advertise"] = {"127.0.0.1:7001", "127.0.0.1:7002"};
  EXPECT_EQ(LinkMbit(options, sysfs), 25'000u) << "two ports of one interface";
  std::filesystem::remove_all(sysfs);
}

}  // namespace
}  // namespace tensorcast::daemon
