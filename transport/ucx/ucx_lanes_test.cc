#include "transport/ucx/ucx_lanes.h"

#include <filesystem>

#include "base/testing/temp_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/ucx/ucx_transport.h"

namespace tensorcast::transport::ucx_lanes_test {
namespace {

using ::testing::HasSubstr;

std::string AddressOf(UcxLane lane, std::string_view listen) {
  const auto address = UcxListenAddress(lane, listen);
  return address.ok() ? *address : std::string(address.status().message());
}

TEST(UcxListenAddress, RmaLane_ListensOnTheNextPort) {
  EXPECT_EQ(AddressOf(UcxLane::kMessages, "10.0.0.1:7010"), "10.0.0.1:7010");
  EXPECT_EQ(AddressOf(UcxLane::kRma, "10.0.0.1:7010"), "10.0.0.1:7011");
}

TEST(UcxListenAddress, PortZero_IsAnyPortForBothLanes) {
  for (const UcxLane lane : {UcxLane::kMessages, UcxLane::kRma}) {
    EXPECT_EQ(AddressOf(lane, "[::1]:0"), "[::1]:0");
  }
}

TEST(UcxListenAddress, LastPort_IsRefused) {
  EXPECT_EQ(AddressOf(UcxLane::kRma, "a:65534"), "a:65535");
  for (const UcxLane lane : {UcxLane::kMessages, UcxLane::kRma}) {
    EXPECT_THAT(AddressOf(lane, "a:65535"), HasSubstr("has the last port"));
  }
}

// The configuration with daemon.ucx_listen.
LaneConfig Listening(bool trusted_fabric) {
  return {.trusted_fabric = trusted_fabric, .values = {{std::string(kUcxListenKey), {"127.0.0.1:0"}}}};
}

// What a start says about both lanes, which are opened together.
std::vector<LaneProblem> ProblemsOf(const LaneConfig& config) {
  const std::vector<LaneProblem> problems = UcxMessagesLane().check(config);
  EXPECT_EQ(UcxRmaLane().check(config).size(), problems.size());
  return problems;
}

TEST(UcxLanes, UcxOverTcp_NeedsTrustedFabric) {
  setenv(kUcxOverTcpVariable, "1", /*overwrite=*/1);
  const std::vector<LaneProblem> problems = ProblemsOf(Listening(/*trusted_fabric=*/false));
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].key, "daemon.ucx_listen");
  EXPECT_THAT(problems[0].what, HasSubstr("\"127.0.0.1:0\": UCX checks no certificates"));
  EXPECT_THAT(problems[0].what, HasSubstr("security.trusted_fabric: true"));
  EXPECT_THAT(ProblemsOf(Listening(/*trusted_fabric=*/true)), ::testing::IsEmpty());
  unsetenv(kUcxOverTcpVariable);
}

TEST(UcxLanes, UcxWithoutRdmaDevice_IsRefused) {
  if (RequireRdmaDevice().ok()) GTEST_SKIP() << "this host has an RDMA device";
  for (const bool trusted : {false, true}) {
    const std::vector<LaneProblem> problems = ProblemsOf(Listening(trusted));
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
}  // namespace tensorcast::transport::ucx_lanes_test
