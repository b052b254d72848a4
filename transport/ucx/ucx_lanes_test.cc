#include "transport/ucx/ucx_lanes.h"

#include <filesystem>

#include "base/testing/temp_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/ucx/ucx_transport.h"

namespace tensorcast::transport {
namespace {

using ::testing::HasSubstr;

std::string RefusalOf(const LaneConfig& config) {
  const absl::Status status = UcxPortsOf(config).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(UcxPorts, UcxPorts_FollowTheListenPort) {
  const auto ports = UcxPortsOf({.ucx_listen = "10.0.0.1:7010"});
  ASSERT_TRUE(ports.ok()) << ports.status();
  EXPECT_EQ(ports->messages_listen, "10.0.0.1:7010");
  EXPECT_EQ(ports->rma_listen, "10.0.0.1:7011");
  EXPECT_EQ(ports->data.first, 7012);
  EXPECT_EQ(ports->data.last, 7019);
}

TEST(UcxPorts, UcxPorts_AreChosenBySystemForListenPortZero) {
  const auto ports = UcxPortsOf({.ucx_listen = "[::1]:0"});
  ASSERT_TRUE(ports.ok()) << ports.status();
  EXPECT_EQ(ports->messages_listen, "[::1]:0");
  EXPECT_EQ(ports->rma_listen, "[::1]:0");
  EXPECT_EQ(ports->data.first, 0);
}

TEST(UcxPorts, ConfiguredDataPorts_MustNotContainListenPorts) {
  const auto ports = UcxPortsOf({.ucx_listen = "a:7010", .ucx_data_ports = {7012, 7012}});
  ASSERT_TRUE(ports.ok()) << ports.status();
  EXPECT_EQ(ports->data.last, 7012);
  EXPECT_TRUE(UcxPortsOf({.ucx_listen = "a:7010", .ucx_data_ports = {7000, 7009}}).ok());
  for (const Ports taken : {Ports{7010, 7010}, Ports{7011, 7020}, Ports{7000, 7010}}) {
    EXPECT_THAT(RefusalOf({.ucx_listen = "a:7010", .ucx_data_ports = taken}),
                HasSubstr("has the ports 7010 and 7011 in it"));
  }
}

TEST(UcxPorts, UcxPortsPast65535_AreRefused) {
  EXPECT_TRUE(UcxPortsOf({.ucx_listen = "a:65526"}).ok());
  EXPECT_THAT(RefusalOf({.ucx_listen = "a:65527"}), HasSubstr("leaves no room for 8 ports"));
  EXPECT_TRUE(UcxPortsOf({.ucx_listen = "a:65534", .ucx_data_ports = {7012, 7019}}).ok());
  EXPECT_THAT(RefusalOf({.ucx_listen = "a:65535", .ucx_data_ports = {7012, 7019}}),
              HasSubstr("leaves no next port"));
}

// What a start says about both lanes, which are opened together.
std::vector<LaneProblem> ProblemsOf(const LaneConfig& config) {
  const std::vector<LaneProblem> problems = UcxMessagesLane().check(config);
  EXPECT_EQ(UcxRmaLane().check(config).size(), problems.size());
  return problems;
}

TEST(UcxLanes, UcxOverTcp_NeedsTrustedFabric) {
  LaneConfig config{.ucx_listen = "127.0.0.1:0", .ucx_over_tcp = true};
  const std::vector<LaneProblem> problems = ProblemsOf(config);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].key, "daemon.ucx_listen");
  EXPECT_THAT(problems[0].what, HasSubstr("\"127.0.0.1:0\": UCX checks no certificates"));
  EXPECT_THAT(problems[0].what, HasSubstr("security.trusted_fabric: true"));
  config.trusted_fabric = true;
  EXPECT_THAT(ProblemsOf(config), ::testing::IsEmpty());
}

TEST(UcxLanes, UcxWithoutRdmaDevice_IsRefused) {
  if (RequireRdmaDevice().ok()) GTEST_SKIP() << "this host has an RDMA device";
  for (const bool trusted : {false, true}) {
    const std::vector<LaneProblem> problems =
        ProblemsOf({.ucx_listen = "127.0.0.1:0", .trusted_fabric = trusted});
    ASSERT_EQ(problems.size(), 1u);
    EXPECT_EQ(problems[0].key, "daemon.ucx_listen");
    EXPECT_THAT(problems[0].what, HasSubstr("there is no RDMA device in /sys/class/infiniband"));
  }
}

TEST(UcxLanes, RdmaDevice_IsFoundInKernelFolder) {
  const ::tensorcast::testing::TempFolder folder;
  EXPECT_TRUE(absl::IsUnavailable(RequireRdmaDevice(folder.path() + "/missing")));
  EXPECT_TRUE(absl::IsUnavailable(RequireRdmaDevice(folder.path())));
  std::filesystem::create_directory(folder.path() + "/mlx5_0");
  EXPECT_TRUE(RequireRdmaDevice(folder.path()).ok());
}

}  // namespace
}  // namespace tensorcast::transport
