// The transport contract over UCX: both lanes, over TCP on the loopback interface. The one-sided lane is made
// for RDMA; over TCP UCX emulates its reads, which is slow and all the same to the contract.
#include "absl/log/check.h"
#include "transport/testing/transport_contract.h"
#include "transport/ucx/raw_peer.h"
#include "transport/ucx/ucx_transport.h"

namespace tensorcast::transport {
namespace {

std::unique_ptr<Transport> NewUcxTransport(const std::string& lane) {
  UcxOptions options;
  options.lane = lane == "ucx-rma" ? UcxLane::kRma : UcxLane::kMessages;
  options.over_tcp = true;
  // UCX 1.13 aborts when a connection with emulated reads under way is lost: let them end.
  if (options.lane == UcxLane::kRma) options.drain_timeout = absl::Seconds(3);
  auto transport = UcxTransport::Create(options);
  CHECK_OK(transport.status());
  return *std::move(transport);
}

const LaneUnderTest kMessages{
    .lane = "ucx", .create = NewUcxTransport, .new_peer = [] { return std::make_unique<RawPeer>(); }};
const auto kLanes = testing::Values(kMessages, LaneUnderTest{.lane = "ucx-rma",
                                                             .create = NewUcxTransport,
                                                             .serves_staged_images = false,
                                                             .serves_filling_images = false,
                                                             .digests_on_the_way = false,
                                                             .source_survives_lost_receivers = false});

// The end of a served pull that the source closes stays in the kernel for a minute, with the source's port.
// The next process that listens there has the same right to it: a restarted daemon keeps its address.
class UcxListener : public testing::TestWithParam<UcxLane> {
 protected:
  static std::unique_ptr<UcxTransport> NewTransport(const std::string& listen) {
    auto transport = UcxTransport::Create({.lane = GetParam(), .listen = listen, .over_tcp = true});
    CHECK_OK(transport.status());
    return *std::move(transport);
  }
};

TEST_P(UcxListener, ReleasedUcxAddress_CanBeListenedOnAtOnce) {
  constexpr uint64_t kImageBytes = uint64_t{1} << 20;
  TestMemory source_memory(kImageBytes), receiver_memory(kImageBytes);
  const std::vector<HostSpan> image = {source_memory.span(0, kImageBytes)};
  WritePattern(image);
  auto receiver = NewTransport("127.0.0.1:0");
  ASSERT_EQ(receiver->RegisterMemory(receiver_memory.data(), kImageBytes), absl::OkStatus());
  std::string listen = "127.0.0.1:0";
  for (int life = 0; life < 3; ++life) {
    auto source = NewTransport(listen);
    listen = source->address();
    ASSERT_EQ(source->RegisterMemory(source_memory.data(), kImageBytes), absl::OkStatus());
    auto serving = source->Serve(std::make_shared<InPlaceImage>(image), /*receiver=*/"");
    ASSERT_TRUE(serving.ok()) << serving.status();
    auto pull = receiver->Connect(RequestContext::Background(absl::Seconds(30)), (*serving)->descriptor());
    ASSERT_TRUE(pull.ok()) << pull.status();
    EXPECT_EQ(PullAll(**pull, {receiver_memory.span(0, kImageBytes)}), absl::OkStatus());
    pull->reset();
    serving->reset();
    source.reset();  // closes its end of the connection first
  }
}

TEST_P(UcxListener, UcxAddressInUse_IsUnavailable) {
  const auto first = NewTransport("127.0.0.1:0");
  const auto second =
      UcxTransport::Create({.lane = GetParam(), .listen = first->address(), .over_tcp = true});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable) << second.status();
}

INSTANTIATE_TEST_SUITE_P(Ucx, UcxListener, testing::Values(UcxLane::kMessages, UcxLane::kRma),
                         [](const auto& info) {
                           return info.param == UcxLane::kRma ? "OneSided" : "Messages";
                         });

std::string LaneName(const testing::TestParamInfo<LaneUnderTest>& info) {
  return info.param.lane == "ucx" ? "Messages" : "OneSided";
}
INSTANTIATE_TEST_SUITE_P(Ucx, TransportContract, kLanes, LaneName);
INSTANTIATE_TEST_SUITE_P(Ucx, FillingContract, testing::Values(kMessages), LaneName);
INSTANTIATE_TEST_SUITE_P(Ucx, ProtocolContract, testing::Values(kMessages), LaneName);
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
