#include "transport/loopback/loopback_transport.h"
#include "transport/testing/transport_contract.h"

namespace tensorcast::transport {
namespace {

INSTANTIATE_TEST_SUITE_P(Loopback, TransportContract,
                         testing::Values(LaneUnderTest{.lane = "loopback", .create = [](const std::string&) {
                                                         return NewLoopbackTransport();
                                                       }}));

}  // namespace
}  // namespace tensorcast::transport
