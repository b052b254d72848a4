// What a transport is told when it is made: where it listens, what it advertises, its limits.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/address.h"
#include "base/steady_time.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/testing/recorded_telemetry.h"
#include "transport/pull/pull_source.h"
#include "transport/tcp/io_loop.h"
#include "transport/tcp/protocol_fixture.h"
#include "transport/tcp/tcp_source.h"

namespace tensorcast::transport::tcp::tcp_transport_test {
namespace {

using ::testing::HasSubstr;

class TcpAddresses : public ProtocolTest {
 protected:
  absl::Status PullFrom(std::vector<std::string> addresses) {
    descriptor_.addresses = std::move(addresses);
    auto pull =
        transport_->Connect(RequestContext::Background(absl::Seconds(30)), EncodeDescriptor(descriptor_));
    if (!pull.ok()) return pull.status();
    Completions done;
    (*pull)->Fetch(0, {memory_.span(1000000, kImageBytes)}, SteadyTime::InfiniteFuture(), done.Expect());
    EXPECT_TRUE(done.Wait());
    EXPECT_TRUE(HoldsPattern(memory_.span(1000000, kImageBytes), 0));
    return done.statuses()[0];
  }
  uint16_t port() const { return ParseHostPort(transport_->address()).value().port; }
};

TEST_F(TcpAddresses, UnreachableAddress_IsSkippedForTheNext) {
  EXPECT_EQ(PullFrom({"127.0.0.1:1", "no-such-host.invalid:7", transport_->address()}), absl::OkStatus());
}

TEST_F(TcpAddresses, PeerThatClosesBeforeWelcome_IsSkippedForTheNext) {
  RawListener closes;
  RawListener hears;
  std::thread peers([&] {
    closes.Accept().Close();
    RawPeer hearing = hears.Accept();
    hearing.NextAs<Hello>();
  });
  EXPECT_EQ(PullFrom({closes.address(), hears.address(), transport_->address()}), absl::OkStatus());
  peers.join();
}

TEST_F(TcpAddresses, AddressWithoutListener_IsUnavailableByName) {
  const absl::Status status = PullFrom({"127.0.0.1:1"});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("127.0.0.1:1"));
  EXPECT_EQ(PullFrom({"no-such-host.invalid:7"}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(PullFrom({"nonsense"}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TcpAddresses, HostName_IsResolvedForPull) {
  Open({.listen = "127.0.0.1:0"});
  EXPECT_EQ(PullFrom({absl::StrCat("localhost:", port())}), absl::OkStatus());
}

TEST_F(TcpAddresses, Ipv6Address_IsListenedOnAndPulledFrom) {
  if (InterfaceOf(ResolveAddress({"::1", 1}).value()).empty()) GTEST_SKIP() << "this host has no IPv6";
  Open({.listen = "[::1]:0"});
  EXPECT_THAT(transport_->address(), ::testing::StartsWith("[::1]:"));
  EXPECT_EQ(PullFrom({transport_->address()}), absl::OkStatus());
}

TEST_F(TcpAddresses, ReleasedAddress_CanBeListenedOnAtOnce) {
  std::string listen = "127.0.0.1:0";
  for (int life = 0; life < 3; ++life) {
    serving_.reset();
    transport_.reset();
    Open({.listen = listen});
    listen = transport_->address();
    RawPeer receiver = Introduced();
    serving_.reset();  // closes its end of the connection first
    EXPECT_TRUE(receiver.IsClosed());
  }
}

TEST(TcpTransportOptions, ListenAddressInUse_IsUnavailable) {
  const auto first = TcpTransport::Create({}).value();
  const absl::Status second = TcpTransport::Create({.listen = first->address()}).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kUnavailable) << second;
  EXPECT_THAT(second.message(), HasSubstr(first->address()));
}

TEST(TcpTransportOptions, InvalidTcpOptions_AreRefused) {
  for (const TcpOptions& options :
       {TcpOptions{.listen = "nonsense"}, TcpOptions{.advertise = {"nonsense"}}, TcpOptions{.threads = -1},
        TcpOptions{.connections = 17}, TcpOptions{.congestion_control = "no-such-thing"},
        TcpOptions{.serving_threads = 0}}) {
    const absl::Status status = TcpTransport::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
}

TEST(TcpTransportOptions, CongestionControl_CanBeChosen) {
  EXPECT_EQ(TcpTransport::Create({.congestion_control = "reno"}).status(), absl::OkStatus());
}

// How long a pull takes at least, by this source and this receiver: what moves in so much time is its burst,
// and one step.
absl::Duration PullTime(const TcpOptions& source_options, const TcpOptions& receiver_options) {
  constexpr uint64_t kBytes = uint64_t{4} << 20;
  const auto source = TcpTransport::Create(source_options).value();
  const auto receiver = TcpTransport::Create(receiver_options).value();
  TestMemory memory(2 * kBytes);
  for (const auto& transport : {source.get(), receiver.get()}) {
    EXPECT_EQ(transport->RegisterMemory(memory.data(), memory.bytes()), absl::OkStatus());
  }
  WritePattern(memory.span(0, kBytes), 0);
  auto serving = source
                     ->Serve(std::make_shared<InPlaceImage>(std::vector<HostSpan>{memory.span(0, kBytes)}),
                             /*receiver=*/"")
                     .value();
  const SteadyTime start = SteadyNow();
  auto pull = receiver->Connect(RequestContext::Background(absl::Seconds(30)), serving->descriptor()).value();
  pull->SetSilenceLimit(absl::Seconds(10));
  Completions done;
  for (uint64_t offset = 0; offset < kBytes; offset += kBytes / 4) {
    pull->Fetch(offset, {memory.span(kBytes + offset, kBytes / 4)}, SteadyTime::InfiniteFuture(),
                done.Expect());
  }
  EXPECT_TRUE(done.Wait());
  const absl::Duration time = SteadyNow() - start;
  for (const absl::Status& status : done.statuses()) EXPECT_EQ(status, absl::OkStatus());
  EXPECT_TRUE(HoldsPattern(memory.span(kBytes, kBytes), 0));
  return time;
}

TEST(TcpLimits, SendLimit_DelaysPullAndIsCounted) {
  otel::testing::RecordedTelemetry recorded;
  EXPECT_GE(PullTime({.send_limit = uint64_t{8} << 20}, {}), absl::Milliseconds(300));
  EXPECT_GE(recorded.Sum(otel::metrics::kP2pHeldBack.id(), {"tcp", "serve"}), 1);
}

TEST(TcpLimits, ReceiveLimit_DelaysPullAndIsCounted) {
  otel::testing::RecordedTelemetry recorded;
  EXPECT_GE(PullTime({}, {.receive_limit = uint64_t{8} << 20}), absl::Milliseconds(300));
  EXPECT_GE(recorded.Sum(otel::metrics::kP2pHeldBack.id(), {"tcp", "receive"}), 1);
}

TEST(TcpLimits, PullThatEndsWhileItWaits_LeavesNoTimerBehind) {
  constexpr uint64_t kBytes = uint64_t{4} << 20;
  const auto source = TcpTransport::Create({}).value();
  const auto receiver = TcpTransport::Create({.receive_limit = uint64_t{8} << 20}).value();
  TestMemory memory(2 * kBytes);
  for (const auto& transport : {source.get(), receiver.get()}) {
    EXPECT_EQ(transport->RegisterMemory(memory.data(), memory.bytes()), absl::OkStatus());
  }
  const auto serve = [&] {
    return source
        ->Serve(std::make_shared<InPlaceImage>(std::vector<HostSpan>{memory.span(0, kBytes)}),
                /*receiver=*/"")
        .value();
  };
  auto revoked = serve();
  auto kept = serve();
  const RequestContext context = RequestContext::Background(absl::Seconds(30));
  auto pull = receiver->Connect(context, revoked->descriptor()).value();
  Completions done;
  for (uint64_t offset = 0; offset < kBytes; offset += kBytes / 4) {
    pull->Fetch(offset, {memory.span(kBytes + offset, kBytes / 4)}, SteadyTime::InfiniteFuture(),
                done.Expect());
  }
  EXPECT_TRUE(done.WaitForAny());
  revoked.reset();
  EXPECT_TRUE(done.Wait());
  pull.reset();
  // Its time comes while this one waits for the same limit.
  auto other = receiver->Connect(context, kept->descriptor()).value();
  Completions others;
  other->Fetch(0, {memory.span(kBytes, kBytes)}, SteadyTime::InfiniteFuture(), others.Expect());
  EXPECT_TRUE(others.Wait());
  EXPECT_EQ(others.statuses()[0], absl::OkStatus());
}

TEST(TcpTransportOptions, TransportWithoutAddress_OnlyReceives) {
  auto transport = TcpTransport::Create({.listen = ""}).value();
  EXPECT_EQ(transport->address(), "");
  auto image = std::make_shared<InPlaceImage>(std::vector<HostSpan>{});
  EXPECT_EQ(transport->Serve(image, /*receiver=*/"").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(TcpTransportOptions, AdvertisedAddresses_AreInTheDescriptor) {
  auto transport =
      TcpTransport::Create({.listen = "0.0.0.0:0", .advertise = {"127.0.0.1:0", "node-a.example:77"}})
          .value();
  auto serving =
      transport->Serve(std::make_shared<InPlaceImage>(std::vector<HostSpan>{}), /*receiver=*/"").value();
  EXPECT_THAT(
      DecodeDescriptor(kTcpLane, serving->descriptor())->addresses,
      ::testing::ElementsAre(::testing::MatchesRegex("127\\.0\\.0\\.1:[1-9][0-9]*"), "node-a.example:77"));
}

// The loop outlives the source: a timer of the source's that is left in it would call what is gone.
TEST(TcpSource, ShutdownWithoutDescriptors_LeavesNoTimerBehind) {
  const std::unique_ptr<IoLoop> loop = IoLoop::Start("test").value();
  pull::PullSource pulls(kTcpLane, {}, /*serving_threads=*/1);
  TcpSource source({loop.get()}, &pulls, {});
  const uint16_t port = source.Listen(ResolveAddress({"127.0.0.1", 0}).value()).value();
  const UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // This was the lowest free number, so none is left.
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit full = before;
  full.rlim_cur = static_cast<rlim_t>(client.get()) + 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &full), 0);
  const SocketAddress address = ResolveAddress({"127.0.0.1", port}).value();
  EXPECT_EQ(connect(client.get(), address.get(), address.length), 0);
  char byte;
  EXPECT_LE(recv(client.get(), &byte, 1, 0), 0) << "the spare descriptor was to refuse the connection";
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  bool waited = false, waits = false;
  loop->Run([&] { waited = loop->queue().has_timers(); });
  source.Shutdown();
  loop->Run([&] { waits = loop->queue().has_timers(); });
  EXPECT_TRUE(waited) << "nothing was tested";
  EXPECT_FALSE(waits);
}

}  // namespace
}  // namespace tensorcast::transport::tcp::tcp_transport_test
