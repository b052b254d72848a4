#include "transport/loopback/loopback_serving.h"
#include "transport/loopback/loopback_transport.h"
#include "transport/testing/transport_contract.h"

namespace tensorcast::transport {
namespace {

INSTANTIATE_TEST_SUITE_P(Loopback, TransportContract,
                         testing::Values(LaneUnderTest{.lane = "loopback", .create = [](const std::string&) {
                                                         return NewLoopbackTransport();
                                                       }}));

TEST(LoopbackDescriptor, IsMagicVersionAndPullId) {
  EXPECT_EQ(EncodeLoopbackDescriptor(PullIdFromBytes("0123456789abcdef")),
            "TCLB\x01"
            "0123456789abcdef");
}

}  // namespace
}  // namespace tensorcast::transport
