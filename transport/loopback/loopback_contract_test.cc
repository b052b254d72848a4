#include "transport/loopback/loopback_transport.h"
#include "transport/testing/transport_contract.h"

namespace tensorcast::transport {
namespace {

const auto kLane = testing::Values(
    LaneUnderTest{.lane = "loopback", .create = [](const std::string&) { return NewLoopbackTransport(); }});
INSTANTIATE_TEST_SUITE_P(Loopback, TransportContract, kLane);
INSTANTIATE_TEST_SUITE_P(Loopback, FillingContract, kLane);

}  // namespace
}  // namespace tensorcast::transport
