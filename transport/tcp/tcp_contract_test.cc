// The transport contract over TCP: by one connection, and by several on several threads.
#include "absl/log/check.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/testing/transport_contract.h"

namespace tensorcast::transport {
namespace {

std::unique_ptr<Transport> NewTcpTransport(const std::string& lane) {
  const int threads = lane == "tcp" ? 1 : 3;
  auto transport = TcpTransport::Create({.threads = threads});
  CHECK_OK(transport.status());
  return *std::move(transport);
}

const auto kLanes = testing::Values(LaneUnderTest{.lane = "tcp", .create = NewTcpTransport},
                                    LaneUnderTest{.lane = "tcp-several", .create = NewTcpTransport});

std::string LaneName(const testing::TestParamInfo<LaneUnderTest>& info) {
  return info.param.lane == "tcp" ? "OneConnection" : "SeveralConnections";
}
INSTANTIATE_TEST_SUITE_P(Tcp, TransportContract, kLanes, LaneName);
INSTANTIATE_TEST_SUITE_P(Tcp, SourceProcessContract, kLanes, LaneName);

}  // namespace
}  // namespace tensorcast::transport

int main(int argc, char** argv) {
  if (tensorcast::transport::MaybeRunSourceProcess(argc, argv, tensorcast::transport::NewTcpTransport)) {
    return 0;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
