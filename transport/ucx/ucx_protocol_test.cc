// Peers as only UCX can have them: the other end answers or closes their connection, and serves all others as
// before. What they may say in frames is ProtocolContract's (transport/testing).
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <thread>

#include <gmock/gmock.h>

#include "absl/synchronization/notification.h"
#include "base/address.h"
#include "base/steady_time.h"
#include "transport/pull/wire.h"
#include "transport/testing/test_image.h"
#include "transport/ucx/raw_peer.h"
#include "transport/ucx/ucx_transport.h"
#include "transport/ucx/ucx_worker.h"

namespace tensorcast::transport::ucx_protocol_test {
namespace {

constexpr uint64_t kImageBytes = 100000;

class ProtocolTest : public ::testing::Test {
 protected:
  void SetUp() override {
    transport_ = *UcxTransport::Create({.over_tcp = true});
    ASSERT_TRUE(transport_->RegisterMemory(memory_.data(), memory_.bytes()).ok());
    WritePattern(memory_.span(0, kImageBytes), 0);
    serving_ = *transport_->Serve(
        std::make_shared<InPlaceImage>(std::vector<HostSpan>{memory_.span(0, kImageBytes)}), /*receiver=*/"");
    descriptor_ = *pull::DecodeDescriptor("ucx", serving_->descriptor());
  }

  // A well-behaved receiver is still served.
  void ExpectServed() {
    RawPeer peer;
    peer.Connect(transport_->address());
    peer.Send(Hello());
    EXPECT_EQ(peer.NextAs<pull::Welcome>().image_bytes, kImageBytes);
    peer.Send(pull::Request{.id = 1, .offset = 0, .bytes = 100});
    EXPECT_EQ(peer.NextAs<pull::Data>().bytes, 100u);
    peer.Send(pull::Bye{});
    peer.NextAs<pull::Bye>();
  }

  std::string_view Image(uint64_t offset, uint64_t bytes) const {
    return {reinterpret_cast<const char*>(memory_.data()) + offset, bytes};
  }

  pull::Hello Hello() const {
    // A RawPeer's worker has segments of 64 KiB, and a longer message would abort the process.
    return {.max_piece_bytes = 50000, .pull_id = descriptor_.pull_id};
  }

  TestMemory memory_{1 << 20};
  std::unique_ptr<UcxTransport> transport_;
  std::unique_ptr<Serving> serving_;
  pull::Descriptor descriptor_;
};

TEST_F(ProtocolTest, RefusedHello_LeavesConnectionForAnother) {
  RawPeer peer;
  peer.Connect(transport_->address());
  pull::Hello hello = Hello();
  hello.pull_id[3] ^= 1;
  peer.Send(hello);
  EXPECT_EQ(peer.NextAs<pull::Error>().status.code(), absl::StatusCode::kNotFound);
  peer.Send(Hello());
  EXPECT_EQ(peer.NextAs<pull::Welcome>().image_bytes, kImageBytes);
}

// Whatever a port scanner or a client of another protocol writes. Bytes behind UCX's own magic are another
// matter: UCX trusts them (see the security page).
TEST_F(ProtocolTest, BytesThatAreNotUcx_EndOnlyTheirConnection) {
  const SocketAddress address = *ResolveAddress(*ParseHostPort(transport_->address()));
  std::mt19937_64 random(7);
  for (size_t size : {0, 1, 7, 8, 9, 64, 4096, 100000}) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(connect(fd, address.get(), address.length), 0);
    // A listener that hangs up early makes the later bytes fail, which is as good.
    (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    close(fd);
  }
  ExpectServed();
}

TEST_F(ProtocolTest, ProtocolError_EndsOnlyItsConnection) {
  const std::vector<std::function<void(RawPeer&)>> offences = {
      [](RawPeer& peer) { peer.SendBytes(UcxWorker::kControlId, "\x63garbage"); },
      [](RawPeer& peer) { peer.SendBytes(UcxWorker::kControlId, std::string(3, '\x01')); },
      [](RawPeer& peer) { peer.SendBytes(UcxWorker::kDataId, "x"); },
      [](RawPeer& peer) {
        peer.SendBytes(UcxWorker::kDataId,
                       pull::EncodeFrame(pull::Data{.request_id = 1, .offset = 0, .bytes = 1}));
      },
  };
  for (size_t i = 0; i < offences.size(); ++i) {
    RawPeer peer;
    peer.Connect(transport_->address());
    offences[i](peer);
    EXPECT_TRUE(peer.IsClosed()) << "offence " << i;
  }
  ExpectServed();
}

// A pull from a RawPeer, as far as its WELCOME.
class LyingSourceTest : public ProtocolTest {
 protected:
  absl::Status Connect(const pull::Welcome& welcome) {
    const pull::Descriptor descriptor{
        .lane = "ucx", .image_bytes = kImageBytes, .addresses = {source_.Listen()}};
    absl::Status status;
    std::thread connecting([&] {
      absl::StatusOr<std::unique_ptr<Pull>> pull = transport_->Connect(
          RequestContext::Background(absl::Seconds(30)), pull::EncodeDescriptor(descriptor));
      status = pull.status();
      if (pull.ok()) pull_ = *std::move(pull);
    });
    source_.NextAs<pull::Hello>();
    source_.Send(welcome);
    connecting.join();
    return status;
  }

  void FetchIntoEnd() {
    pull_->Fetch(10, {memory_.span(900000, 1000)}, SteadyTime::InfiniteFuture(), done_.Expect());
  }

  RawPeer source_;
  std::unique_ptr<Pull> pull_;
  Completions done_;
};

constexpr pull::Welcome kWelcome = {
    .max_requests = 8, .max_request_bytes = 1 << 20, .image_bytes = kImageBytes};

TEST_F(LyingSourceTest, PiecesOfOneRequest_MayComeInAnyOrder) {
  ASSERT_TRUE(Connect(kWelcome).ok());
  FetchIntoEnd();
  const auto request = source_.NextAs<pull::Request>();
  source_.SendPiece({.request_id = request.id, .offset = 610}, Image(610, 400));
  source_.SendPiece({.request_id = request.id, .offset = 10}, Image(10, 600));
  ASSERT_TRUE(done_.Wait());
  EXPECT_TRUE(done_.statuses()[0].ok()) << done_.statuses()[0];
  EXPECT_TRUE(HoldsPattern(memory_.span(900000, 1000), 10));
}

TEST_F(LyingSourceTest, Piece_MayComeByRendezvous) {
  ASSERT_TRUE(Connect(kWelcome).ok());
  pull_->Fetch(0, {memory_.span(900000, kImageBytes)}, SteadyTime::InfiniteFuture(), done_.Expect());
  const auto request = source_.NextAs<pull::Request>();
  // A RawPeer's worker sends from 16 KiB on by rendezvous.
  source_.SendPiece({.request_id = request.id, .offset = 0}, Image(0, kImageBytes));
  ASSERT_TRUE(done_.Wait());
  EXPECT_TRUE(done_.statuses()[0].ok()) << done_.statuses()[0];
  EXPECT_TRUE(HoldsPattern(memory_.span(900000, kImageBytes), 0));
}

// The rendezvous keeps the request until its bytes are in place. Whichever of these messages is heard first,
// one of them is for a request that is over.
TEST_F(LyingSourceTest, RepeatedErrorForRequest_BreaksThePull) {
  ASSERT_TRUE(Connect(kWelcome).ok());
  pull_->Fetch(0, {memory_.span(900000, kImageBytes)}, SteadyTime::InfiniteFuture(), done_.Expect());
  const auto request = source_.NextAs<pull::Request>();
  source_.AtOnce([&] {
    source_.SendPiece({.request_id = request.id, .offset = 0}, Image(0, 50000));
    for (int i = 0; i < 2; ++i) {
      source_.Send(pull::Error{.request_id = request.id, .status = absl::InvalidArgumentError("no")});
    }
  });
  ASSERT_TRUE(done_.Wait());
  EXPECT_EQ(done_.statuses()[0].code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(source_.IsClosed());
}

// A receiver that reads the source's memory by itself, of which the source sees BYE alone.
class OneSidedTest : public ::testing::Test {
 protected:
  void Serve(absl::Duration drain_timeout) {
    transport_ =
        *UcxTransport::Create({.lane = UcxLane::kRma, .over_tcp = true, .drain_timeout = drain_timeout});
    ASSERT_EQ(transport_->RegisterMemory(memory_.data(), memory_.bytes()), absl::OkStatus());
    serving_ = *transport_->Serve(
        std::make_shared<InPlaceImage>(std::vector<HostSpan>{memory_.span(0, kImageBytes)}), /*receiver=*/"");
    peer_.Connect(transport_->address());
    peer_.Send(pull::Hello{.pull_id = pull::DecodeDescriptor("ucx-rma", serving_->descriptor())->pull_id});
    peer_.NextAs<pull::Welcome>();
  }

  TestMemory memory_{1 << 20};
  std::unique_ptr<UcxTransport> transport_;
  std::unique_ptr<Serving> serving_;
  RawPeer peer_;
};

TEST_F(OneSidedTest, RevokedOneSidedPull_WaitsForReadsOfReceiver) {
  Serve(/*drain_timeout=*/absl::Minutes(1));
  absl::Notification revoked;
  std::thread revoking([&] {
    serving_.reset();
    revoked.Notify();
  });
  EXPECT_EQ(peer_.NextAs<pull::Error>().status.code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(revoked.HasBeenNotified()) << "the receiver may be reading";
  peer_.Send(pull::Bye{});
  peer_.NextAs<pull::Bye>();
  revoking.join();
}

TEST_F(OneSidedTest, RevokedOneSidedPull_EndsReceiverWithoutBye) {
  Serve(/*drain_timeout=*/absl::Milliseconds(20));
  serving_.reset();
  peer_.NextAs<pull::Error>();
  EXPECT_TRUE(peer_.IsClosed());
}

TEST(UcxTransportOptions, InvalidUcxOptions_AreRefused) {
  EXPECT_EQ(UcxTransport::Create({.listen = "nonsense", .over_tcp = true}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(UcxTransport::Create({.over_tcp = true, .requests_in_flight = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(UcxWorker::Create({.tls = "no_such_transport"}).status().code(), absl::StatusCode::kUnavailable);
}

TEST(UcxTransportOptions, TransportWithoutRdmaDevice_NeedsOverTcpOption) {
  if (RequireRdmaDevice().ok()) GTEST_SKIP() << "this host has an RDMA device";
  for (const UcxLane lane : {UcxLane::kMessages, UcxLane::kRma}) {
    const absl::Status refused = UcxTransport::Create({.lane = lane}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(refused.message(), ::testing::HasSubstr("no RDMA device in /sys/class/infiniband"));
    EXPECT_TRUE(UcxTransport::Create({.lane = lane, .over_tcp = true}).ok());
  }
}

TEST(UcxTransportOptions, ListenAddressInUse_IsUnavailable) {
  auto first = *UcxTransport::Create({.over_tcp = true});
  EXPECT_EQ(UcxTransport::Create({.listen = first->address(), .over_tcp = true}).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(UcxTransportOptions, TransportWithoutAddress_OnlyReceives) {
  auto transport = *UcxTransport::Create({.listen = "", .over_tcp = true});
  EXPECT_EQ(transport->address(), "");
  auto image = std::make_shared<InPlaceImage>(std::vector<HostSpan>{});
  EXPECT_EQ(transport->Serve(image, /*receiver=*/"").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(UcxTransportOptions, AdvertisedHost_IsInTheDescriptor) {
  auto transport =
      *UcxTransport::Create({.listen = "0.0.0.0:0", .advertise_host = "127.0.0.1", .over_tcp = true});
  auto serving = transport->Serve(std::make_shared<InPlaceImage>(std::vector<HostSpan>{}), /*receiver=*/"");
  EXPECT_THAT(pull::DecodeDescriptor("ucx", (*serving)->descriptor())->addresses.front(),
              ::testing::StartsWith("127.0.0.1:"));
}

}  // namespace
}  // namespace tensorcast::transport::ucx_protocol_test
