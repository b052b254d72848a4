// The transport contract over UCX: both lanes, over TCP on the loopback interface. The one-sided lane is made
// for RDMA; over TCP UCX emulates its reads, which is slow and all the same to the contract.
#include "absl/log/check.h"
#include "transport/testing/transport_contract.h"
#include "transport/ucx/ucx_transport.h"

namespace tensorcast::transport {
namespace {

std::unique_ptr<Transport> NewUcxTransport(const std::string& lane) {
  UcxOptions options;
  options.lane = lane == "ucx-rma" ? UcxLane::kRma : UcxLane::kMessages;
  options.tls = "tcp";
  // UCX 1.13 aborts when a connection with emulated reads under way is lost: let them end.
  if (options.lane == UcxLane::kRma) {
    options.drain_timeout = absl::Seconds(3);
  }
  auto transport = UcxTransport::Create(options);
  CHECK_OK(transport.status());
  return *std::move(transport);
}

const auto kLanes = testing::Values(LaneUnderTest{.lane = "ucx", .create = NewUcxTransport},
                                    LaneUnderTest{.lane = "ucx-rma",
                                                  .create = NewUcxTransport,
                                                  .serves_staged_images = false,
                                                  .digests_on_the_way = false,
                                                  .source_survives_lost_receivers = false});

std::string LaneName(const testing::TestParamInfo<LaneUnderTest>& info) {
  return info.param.lane == "ucx" ? "Messages" : "OneSided";
}
INSTANTIATE_TEST_SUITE_P(Ucx, TransportContract, kLanes, LaneName);
INSTANTIATE_TEST_SUITE_P(Ucx, SourceProcessContract, kLanes, LaneName);

}  // namespace
}  // namespace tensorcast::transport

int main(int argc, char** argv) {
  if (tensorcast::transport::MaybeRunSourceProcess(argc, argv, tensorcast::transport::NewUcxTransport)) {
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
