// Peers that break the pull protocol, or speak another version of it, and strangers: whoever they face
// answers or closes their connection, and serves everybody else as before.
#include <algorithm>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "base/address.h"
#include "base/steady_time.h"
#include "otel/api/metrics_catalogue.h"
#include "otel/api/testing/recorded_telemetry.h"
#include "transport/tcp/raw_peer.h"
#include "transport/tcp/tcp_transport.h"
#include "transport/tcp/wire.h"
#include "transport/testing/test_image.h"

namespace tensorcast::transport::tcp {
namespace {

using testing::HasSubstr;

constexpr uint64_t kImageBytes = 100000;
// More than the kernel buffers between two ends.
constexpr uint64_t kLargeBytes = uint64_t{48} << 20;

std::string Pattern(uint64_t offset, uint64_t bytes) {
  std::string pattern(bytes, '\0');
  WritePattern(HostSpan(reinterpret_cast<std::byte*>(pattern.data()), bytes), offset);
  return pattern;
}

class ProtocolTest : public testing::Test {
 protected:
  void SetUp() override { Open({}); }

  void Open(const TcpOptions& options) {
    serving_.reset();
    transport_ = TcpTransport::Create(options).value();
    ASSERT_EQ(transport_->RegisterMemory(memory_.data(), memory_.bytes()), absl::OkStatus());
    Serve(kImageBytes);
  }
  void Serve(uint64_t bytes) {
    WritePattern(memory_.span(0, bytes), 0);
    serving_ = transport_
                   ->Serve(std::make_shared<InPlaceImage>(std::vector<HostSpan>{memory_.span(0, bytes)}),
                           /*receiver=*/"")
                   .value();
    descriptor_ = DecodeDescriptor(serving_->descriptor()).value();
  }

  RawPeer Connect() { return RawPeer::ConnectTo(transport_->address()); }
  // As far as its WELCOME.
  RawPeer Introduced() {
    RawPeer peer = Connect();
    peer.Send(HelloFrame());
    EXPECT_EQ(peer.NextAs<Welcome>().image_bytes, descriptor_.image_bytes);
    return peer;
  }
  Hello HelloFrame() const { return {.pull_id = descriptor_.pull_id}; }

  // The answer to one request: pieces that make it up, in order.
  static void ExpectAnswer(RawPeer& peer, const Request& request) {
    for (uint64_t offset = request.offset; offset < request.offset + request.bytes;) {
      const Data data = peer.NextAs<Data>();
      ASSERT_EQ(data.request_id, request.id);
      ASSERT_EQ(data.offset, offset);
      ASSERT_LE(data.bytes, request.offset + request.bytes - offset);
      EXPECT_TRUE(peer.ReadBytes(data.bytes) == Pattern(offset, data.bytes));
      offset += data.bytes;
    }
  }

  // A well-behaved receiver is still served.
  void ExpectServed() {
    RawPeer peer = Introduced();
    const Request all{.id = 1, .offset = 0, .bytes = descriptor_.image_bytes};
    peer.Send(all);
    ExpectAnswer(peer, all);
    peer.Send(Bye{});
    EXPECT_TRUE(peer.IsClosed());
  }

  TestMemory memory_{kLargeBytes};
  std::unique_ptr<TcpTransport> transport_;
  std::unique_ptr<Serving> serving_;
  Descriptor descriptor_;
};

TEST_F(ProtocolTest, AnUnknownPullIsNotFound) {
  RawPeer peer = Connect();
  Hello hello = HelloFrame();
  hello.pull_id[3] ^= 1;
  peer.Send(hello);
  EXPECT_EQ(peer.NextAs<Error>().status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(peer.IsClosed());
  ExpectServed();
}

TEST_F(ProtocolTest, AReceiverOfAnotherVersionIsToldSo) {
  RawPeer peer = Connect();
  Hello hello = HelloFrame();
  hello.min_version = 7;
  hello.max_version = 9;
  peer.Send(hello);
  const absl::Status status = peer.NextAs<Error>().status;
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("versions 7 to 9"));
  EXPECT_TRUE(peer.IsClosed());
  ExpectServed();
}

TEST_F(ProtocolTest, AReceiverThatIsOneVersionAheadIsServed) {
  RawPeer peer = Connect();
  Hello hello = HelloFrame();
  hello.max_version = kMaxVersion + 1;
  peer.Send(hello);
  EXPECT_EQ(peer.NextAs<Welcome>().version, kMaxVersion);
}

TEST_F(ProtocolTest, FramesInSingleBytesAreServed) {
  RawPeer peer = Connect();
  const Request request{.id = 1, .offset = 7, .bytes = 5000};
  for (const char byte : EncodeFrame(HelloFrame())) peer.SendBytes({&byte, 1});
  peer.NextAs<Welcome>();
  for (const char byte : EncodeFrame(request)) peer.SendBytes({&byte, 1});
  ExpectAnswer(peer, request);
}

TEST_F(ProtocolTest, ARequestPastTheEndIsRefusedAndTheNextIsServed) {
  RawPeer peer = Introduced();
  peer.Send(Request{.id = 1, .offset = kImageBytes, .bytes = 1});
  peer.Send(Request{.id = 2, .offset = ~uint64_t{0}, .bytes = 2});
  peer.Send(Request{.id = 3, .offset = 1, .bytes = ~uint64_t{0}});
  for (uint64_t id : {1, 2, 3}) {
    const Error error = peer.NextAs<Error>();
    EXPECT_EQ(error.request_id, id);
    EXPECT_EQ(error.status.code(), absl::StatusCode::kInvalidArgument);
  }
  const Request good{.id = 4, .offset = 0, .bytes = kImageBytes};
  peer.Send(good);
  ExpectAnswer(peer, good);
}

TEST_F(ProtocolTest, ACancelledRequestIsNotSentToItsEndAndTheNextIsServed) {
  Serve(kLargeBytes);
  RawPeer peer = Introduced();
  peer.Send(Request{.id = 1, .offset = 0, .bytes = kLargeBytes});
  peer.Send(Cancel{.id = 1});
  uint64_t came = 0;
  Frame frame = peer.Next();
  for (; std::holds_alternative<Data>(frame); frame = peer.Next()) {
    const Data data = std::get<Data>(frame);
    EXPECT_EQ(data.offset, came);
    EXPECT_EQ(peer.ReadBytes(data.bytes).size(), data.bytes);
    came += data.bytes;
  }
  ASSERT_TRUE(std::holds_alternative<Error>(frame));
  EXPECT_EQ(std::get<Error>(frame).request_id, 1u);
  EXPECT_EQ(std::get<Error>(frame).status.code(), absl::StatusCode::kCancelled);
  EXPECT_LT(came, kLargeBytes);
  peer.Send(Cancel{.id = 1});  // it is over, and that is no offence
  const Request next{.id = 2, .offset = 5, .bytes = 100000};
  peer.Send(next);
  ExpectAnswer(peer, next);
}

TEST_F(ProtocolTest, BytesThatAreNoFramesDoNoHarm) {
  std::mt19937_64 random(7);
  for (size_t size : {0, 1, 7, 8, 9, 64, 4096, 100000}) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    RawPeer peer = Connect();
    peer.SendBytes(bytes);
    peer.Close();
  }
  RawPeer zeros = Connect();
  zeros.SendBytes(std::string(4096, '\0'));
  EXPECT_TRUE(zeros.IsClosed());
  RawPeer browser = Connect();
  browser.SendBytes("GET / HTTP/1.1\r\nHost: here\r\n\r\n");
  EXPECT_TRUE(browser.IsClosed());
  ExpectServed();
}

TEST_F(ProtocolTest, WhoeverBeginsWithAnythingButHelloIsLetGo) {
  const std::vector<Frame> frames = {
      Welcome{.max_requests = 1, .max_request_bytes = 1, .image_bytes = 1},
      Error{.request_id = 1, .status = absl::InternalError("")},
      Request{.id = 1, .offset = 0, .bytes = 1},
      Cancel{.id = 1},
      Bye{},
      Data{.request_id = 1, .offset = 0, .bytes = 1},
  };
  for (const Frame& frame : frames) {
    RawPeer peer = Connect();
    peer.Send(frame);
    EXPECT_TRUE(peer.IsClosed()) << frame.index();
  }
  RawPeer hasty = Connect();
  hasty.SendBytes(EncodeFrame(HelloFrame()) + EncodeFrame(Request{.id = 1, .offset = 0, .bytes = 1}));
  EXPECT_TRUE(hasty.IsClosed());
  ExpectServed();
}

TEST_F(ProtocolTest, AReceiverThatBreaksTheProtocolLosesItsConnectionAndOnlyThat) {
  const std::vector<std::function<void(RawPeer&)>> offences = {
      [](RawPeer& peer) { peer.SendBytes("\x63garbage"); },
      [](RawPeer& peer) { peer.SendBytes(std::string("\x04\0\0\0\xff\xff\xff\xff", 8)); },
      [this](RawPeer& peer) { peer.Send(HelloFrame()); },
      [](RawPeer& peer) { peer.Send(Data{.request_id = 1, .offset = 0, .bytes = 1}); },
      [](RawPeer& peer) { peer.Send(Welcome{.max_requests = 1, .max_request_bytes = 1}); },
      [](RawPeer& peer) { peer.Send(Error{.request_id = 1, .status = absl::InternalError("")}); },
      [](RawPeer& peer) { peer.Send(Cancel{.id = 1}); },
      [](RawPeer& peer) {
        peer.Send(Request{.id = 2, .offset = 0, .bytes = 1});
        peer.Send(Request{.id = 2, .offset = 0, .bytes = 1});
      },
      [](RawPeer& peer) {
        // It reads none of its answers, and asks on until it is let go.
        std::string many;
        for (uint64_t id = 1; id <= 400000; ++id) {
          many += EncodeFrame(Request{.id = id, .offset = kImageBytes, .bytes = 1});
        }
        peer.SendBytes(many);
      },
  };
  for (size_t i = 0; i < offences.size(); ++i) {
    RawPeer peer = Introduced();
    offences[i](peer);
    EXPECT_TRUE(peer.IsClosed()) << "offence " << i;
  }
  ExpectServed();
}

TEST_F(ProtocolTest, MoreRequestsThanWereOfferedEndTheConnection) {
  Serve(kLargeBytes);
  RawPeer peer = Introduced();
  // The first is larger than what the kernel takes of an answer, so the others wait.
  for (uint64_t id = 1; id <= 200; ++id) peer.Send(Request{.id = id, .offset = 0, .bytes = kLargeBytes});
  EXPECT_TRUE(peer.IsClosed());
  ExpectServed();
}

TEST_F(ProtocolTest, OneWhoDoesNotReadHoldsUpNobodyAndIsRevoked) {
  Serve(kLargeBytes);
  RawPeer lazy = Introduced();
  lazy.Send(Request{.id = 1, .offset = 0, .bytes = kLargeBytes});
  RawPeer other = Introduced();
  const Request request{.id = 1, .offset = 1000, .bytes = uint64_t{8} << 20};
  other.Send(request);
  ExpectAnswer(other, request);
  serving_.reset();
  EXPECT_TRUE(other.IsClosed());
  EXPECT_TRUE(lazy.IsClosed());
}

TEST_F(ProtocolTest, ARevokedPullIsSaidToBe) {
  RawPeer peer = Introduced();
  serving_.reset();
  const Error error = peer.NextAs<Error>();
  EXPECT_EQ(error.request_id, kWholePull);
  EXPECT_EQ(error.status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(peer.IsClosed());
}

TEST_F(ProtocolTest, APullHasABoundedNumberOfConnections) {
  std::vector<RawPeer> peers;
  for (int i = 0; i < 16; ++i) peers.push_back(Introduced());
  RawPeer one_more = Connect();
  one_more.Send(HelloFrame());
  EXPECT_EQ(one_more.NextAs<Error>().status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(one_more.IsClosed());
  // A place is free as soon as the source has seen one go.
  peers.back().Send(Bye{});
  EXPECT_TRUE(peers.back().IsClosed());
  ExpectServed();
}

TEST_F(ProtocolTest, SilentStrangersKeepNobodyOutAndMakeRoomForTheNext) {
  std::vector<RawPeer> strangers;
  for (int i = 0; i < 500; ++i) strangers.push_back(Connect());
  ExpectServed();
  // All but the last 64, and of those one made room for the receiver.
  for (int i = 0; i < 500 - 64; ++i) EXPECT_TRUE(strangers[i].IsClosed()) << i;
  EXPECT_TRUE(strangers.back().HasNothingToRead());
}

TEST_F(ProtocolTest, ASilentStrangerIsLetGoAfterItsTime) {
  Open({.stranger_timeout = absl::Milliseconds(20)});
  RawPeer silent = Connect();
  RawPeer slow = Connect();
  slow.SendBytes(EncodeFrame(HelloFrame()).substr(0, 20));
  EXPECT_TRUE(silent.IsClosed());
  EXPECT_TRUE(slow.IsClosed());
}

// A pull from a RawPeer, as far as its WELCOME.
class LyingSourceTest : public ProtocolTest {
 protected:
  absl::Status ConnectPull(const Welcome& welcome) {
    return ConnectPull([&] { source_.Send(welcome); });
  }
  absl::Status ConnectPull(const std::function<void()>& answer) {
    const Descriptor descriptor{.image_bytes = kImageBytes, .addresses = {listener_.address()}};
    absl::Status status;
    std::thread connecting([&] {
      absl::StatusOr<std::unique_ptr<Pull>> pull =
          transport_->Connect(RequestContext::Background(absl::Seconds(30)), EncodeDescriptor(descriptor));
      status = pull.status();
      if (pull.ok()) pull_ = *std::move(pull);
    });
    source_ = listener_.Accept();
    source_.NextAs<Hello>();
    answer();
    connecting.join();
    return status;
  }

  // Image bytes 10 to 1010, into the end of the memory.
  Request Fetch() {
    pull_->Fetch(10, {Destination()}, SteadyTime::InfiniteFuture(), done_.Expect());
    return source_.NextAs<Request>();
  }
  HostSpan Destination() const { return memory_.span(900000, 1000); }
  // What the last fetch came to.
  absl::Status Result() {
    EXPECT_TRUE(done_.Wait());
    return done_.statuses().back();
  }
  void ExpectBrokenAndNothingWritten() {
    const absl::Status status = Result();
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(HoldsOnly(memory_.span(900000, 2000), std::byte{0}));
    pull_->Fetch(0, {Destination()}, SteadyTime::InfiniteFuture(), done_.Expect());
    EXPECT_FALSE(Result().ok());
    EXPECT_TRUE(source_.IsClosed());
  }

  RawListener listener_;
  RawPeer source_;
  std::unique_ptr<Pull> pull_;
  Completions done_;
};

constexpr Welcome kWelcome = {.max_requests = 8, .max_request_bytes = 1 << 20, .image_bytes = kImageBytes};

TEST_F(LyingSourceTest, AWelcomeToAnotherImageIsRefused) {
  Welcome welcome = kWelcome;
  welcome.image_bytes += 1;
  EXPECT_FALSE(ConnectPull(welcome).ok());
  EXPECT_TRUE(source_.IsClosed());
}

TEST_F(LyingSourceTest, AWelcomeInAnotherVersionIsRefusedByTheNumbers) {
  Welcome welcome = kWelcome;
  welcome.version = 9;
  const absl::Status status = ConnectPull(welcome);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(status.message(), testing::AllOf(HasSubstr("version 9"), HasSubstr("1 to 1")));
}

TEST_F(LyingSourceTest, WhatIsNoWelcomeIsRefused) {
  const std::vector<std::string> answers = {
      "HTTP/1.1 400 Bad Request\r\n",
      EncodeFrame(Hello{}),
      EncodeFrame(Request{.id = 1, .offset = 0, .bytes = 1}),
      EncodeFrame(Data{.request_id = 1, .offset = 0, .bytes = 1}),
      EncodeFrame(Error{.request_id = 3, .status = absl::InternalError("")}),
      EncodeFrame(Bye{}),
  };
  for (const std::string& answer : answers) {
    const absl::Status status = ConnectPull([&] { source_.SendBytes(answer); });
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_TRUE(source_.IsClosed());
  }
}

TEST_F(LyingSourceTest, ASourceThatClosesInsteadIsUnavailable) {
  EXPECT_EQ(ConnectPull([&] { source_.Close(); }).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ConnectPull([&] { source_.Reset(); }).code(), absl::StatusCode::kUnavailable);
}

TEST_F(LyingSourceTest, ARefusalIsToldAsItIs) {
  const absl::Status refused = absl::ResourceExhaustedError("busy");
  const absl::Status status = ConnectPull([&] { source_.Send(Error{.status = refused}); });
  EXPECT_EQ(status.code(), refused.code());
  EXPECT_THAT(status.message(), testing::AllOf(HasSubstr("busy"), HasSubstr(listener_.address())));
}

TEST_F(LyingSourceTest, PiecesInSingleBytesArriveWithTheirDigest) {
  ASSERT_EQ(ConnectPull([&] {
              for (const char byte : EncodeFrame(kWelcome)) source_.SendBytes({&byte, 1});
            }),
            absl::OkStatus());
  const Request request = Fetch();
  EXPECT_EQ(request.offset, 10u);
  EXPECT_EQ(request.bytes, 1000u);
  const auto piece = [&](uint64_t offset, uint32_t bytes) {
    return EncodeFrame(Data{.request_id = request.id, .offset = offset, .bytes = bytes}) +
           Pattern(offset, bytes);
  };
  for (const char byte : piece(10, 400) + piece(410, 1) + piece(411, 599)) source_.SendBytes({&byte, 1});
  EXPECT_EQ(Result(), absl::OkStatus());
  EXPECT_TRUE(HoldsPattern(Destination(), 10));
  EXPECT_EQ(done_.digests()[0], ComputeDigest(Destination()));
}

TEST_F(LyingSourceTest, AFlippedBitShowsInTheDigest) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  const Request request = Fetch();
  std::string piece = Pattern(10, 1000);
  const Digest expected = ComputeDigest(std::as_bytes(std::span(piece)));
  piece[777] ^= 1;
  source_.SendPiece({.request_id = request.id, .offset = 10, .bytes = 1000}, piece);
  EXPECT_EQ(Result(), absl::OkStatus());
  ASSERT_TRUE(done_.digests()[0].has_value());
  EXPECT_NE(*done_.digests()[0], expected);
}

TEST_F(LyingSourceTest, PiecesOfTwoRequestsMayComeInTurn) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  const Request first = Fetch();
  pull_->Fetch(5000, {memory_.span(800000, 200)}, SteadyTime::InfiniteFuture(), done_.Expect());
  const auto second = source_.NextAs<Request>();
  source_.SendPiece({.request_id = second.id, .offset = 5000, .bytes = 100}, Pattern(5000, 100));
  source_.SendPiece({.request_id = first.id, .offset = 10, .bytes = 900}, Pattern(10, 900));
  source_.SendPiece({.request_id = second.id, .offset = 5100, .bytes = 100}, Pattern(5100, 100));
  source_.SendPiece({.request_id = first.id, .offset = 910, .bytes = 100}, Pattern(910, 100));
  ASSERT_TRUE(done_.Wait());
  EXPECT_THAT(done_.statuses(), testing::Each(absl::OkStatus()));
  EXPECT_TRUE(HoldsPattern(Destination(), 10));
  EXPECT_TRUE(HoldsPattern(memory_.span(800000, 200), 5000));
}

TEST_F(LyingSourceTest, APieceLongerThanWhatIsDueIsNotReceived) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  const Request request = Fetch();
  source_.SendPiece({.request_id = request.id, .offset = 10, .bytes = 1001}, Pattern(10, 1001));
  ExpectBrokenAndNothingWritten();
}

TEST_F(LyingSourceTest, APieceFromElsewhereIsNotReceived) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  const Request request = Fetch();
  source_.SendPiece({.request_id = request.id, .offset = 11, .bytes = 1}, "x");
  ExpectBrokenAndNothingWritten();
}

TEST_F(LyingSourceTest, APieceThatNobodyAskedForIsNotReceived) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  const Request request = Fetch();
  source_.SendPiece({.request_id = request.id + 1, .offset = 10, .bytes = 1}, "x");
  ExpectBrokenAndNothingWritten();
}

TEST_F(LyingSourceTest, APieceThatComesTwiceBreaksThePull) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  const Request request = Fetch();
  for (int i = 0; i < 2; ++i) {
    source_.SendPiece({.request_id = request.id, .offset = 10, .bytes = 600}, Pattern(10, 600));
  }
  EXPECT_FALSE(Result().ok());
  EXPECT_TRUE(source_.IsClosed());
}

TEST_F(LyingSourceTest, ASourceThatEndsWithinAPieceIsUnavailable) {
  for (const bool reset : {false, true}) {
    ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
    const Request request = Fetch();
    source_.SendPiece({.request_id = request.id, .offset = 10, .bytes = 1000}, Pattern(10, 500));
    if (reset) {
      source_.Reset();
    } else {
      source_.Close();
    }
    EXPECT_EQ(Result().code(), absl::StatusCode::kUnavailable) << Result();
  }
}

TEST_F(LyingSourceTest, ARefusedRequestFailsItsFetchAndNotThePull) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  Request request = Fetch();
  source_.Send(Error{.request_id = request.id, .status = absl::InvalidArgumentError("no")});
  EXPECT_EQ(Result().code(), absl::StatusCode::kInvalidArgument);
  request = Fetch();
  source_.SendPiece({.request_id = request.id, .offset = 10, .bytes = 1000}, Pattern(10, 1000));
  EXPECT_EQ(Result(), absl::OkStatus());
}

TEST_F(LyingSourceTest, AFetchIsAskedForInPartsWithinWhatTheSourceOffers) {
  Welcome welcome = kWelcome;
  welcome.max_requests = 2;
  welcome.max_request_bytes = 300;
  ASSERT_EQ(ConnectPull(welcome), absl::OkStatus());
  Request request = Fetch();
  uint64_t offset = 10;
  for (uint64_t bytes : {300, 300, 300, 100}) {
    EXPECT_EQ(request.offset, offset);
    EXPECT_EQ(request.bytes, bytes);
    source_.SendPiece({.request_id = request.id, .offset = offset, .bytes = static_cast<uint32_t>(bytes)},
                      Pattern(offset, bytes));
    offset += bytes;
    if (offset < 1010) request = source_.NextAs<Request>();
  }
  EXPECT_EQ(Result(), absl::OkStatus());
  EXPECT_TRUE(HoldsPattern(Destination(), 10));
  EXPECT_EQ(done_.digests()[0], ComputeDigest(Destination()));
}

TEST_F(LyingSourceTest, ARevokedPullBreaks) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  Fetch();
  source_.Send(Error{.status = absl::NotFoundError("revoked")});
  EXPECT_EQ(Result().code(), absl::StatusCode::kNotFound);
}

TEST_F(LyingSourceTest, TheEndOfAPullClosesItsConnectionWhateverTheSourceDoes) {
  ASSERT_EQ(ConnectPull(kWelcome), absl::OkStatus());
  Fetch();
  pull_.reset();
  EXPECT_EQ(done_.statuses()[0].code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(source_.IsClosed());
}

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

TEST_F(TcpAddresses, TheNextIsTriedWhereOneDoesNotAnswer) {
  EXPECT_EQ(PullFrom({"127.0.0.1:1", "no-such-host.invalid:7", transport_->address()}), absl::OkStatus());
}

TEST_F(TcpAddresses, OneThatNobodyAnswersIsUnavailableByName) {
  const absl::Status status = PullFrom({"127.0.0.1:1"});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("127.0.0.1:1"));
  EXPECT_EQ(PullFrom({"no-such-host.invalid:7"}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(PullFrom({"nonsense"}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TcpAddresses, AHostMayBeAName) {
  Open({.listen = "127.0.0.1:0"});
  EXPECT_EQ(PullFrom({absl::StrCat("localhost:", port())}), absl::OkStatus());
}

TEST_F(TcpAddresses, AHostMayHaveAnIpv6Address) {
  if (InterfaceOf(ResolveAddress({"::1", 1}).value()).empty()) GTEST_SKIP() << "this host has no IPv6";
  Open({.listen = "[::1]:0"});
  EXPECT_THAT(transport_->address(), testing::StartsWith("[::1]:"));
  EXPECT_EQ(PullFrom({transport_->address()}), absl::OkStatus());
}

TEST_F(TcpAddresses, OneThatServedAPullCanBeListenedOnAgainAtOnce) {
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

TEST(TcpTransportOptions, TwoDoNotShareAnAddress) {
  const auto first = TcpTransport::Create({}).value();
  const absl::Status second = TcpTransport::Create({.listen = first->address()}).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kUnavailable) << second;
  EXPECT_THAT(second.message(), HasSubstr(first->address()));
}

TEST(TcpTransportOptions, WhatCannotWorkIsRefused) {
  for (const TcpOptions& options :
       {TcpOptions{.listen = "nonsense"}, TcpOptions{.advertise = {"nonsense"}}, TcpOptions{.threads = -1},
        TcpOptions{.connections = 17}, TcpOptions{.congestion_control = "no-such-thing"},
        TcpOptions{.serving_threads = 0}}) {
    const absl::Status status = TcpTransport::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
}

TEST(TcpTransportOptions, TheCongestionControlCanBeChosen) {
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

TEST(TcpLimits, NoMoreIsSentThanTheLimitSays) {
  otel::testing::RecordedTelemetry recorded;
  EXPECT_GE(PullTime({.send_limit = uint64_t{8} << 20}, {}), absl::Milliseconds(300));
  EXPECT_GE(recorded.Sum(otel::metrics::kP2pHeldBack.id(), {"tcp", "serve"}), 1);
}

TEST(TcpLimits, NoMoreIsReceivedThanTheLimitSays) {
  otel::testing::RecordedTelemetry recorded;
  EXPECT_GE(PullTime({}, {.receive_limit = uint64_t{8} << 20}), absl::Milliseconds(300));
  EXPECT_GE(recorded.Sum(otel::metrics::kP2pHeldBack.id(), {"tcp", "receive"}), 1);
}

TEST(TcpTransportOptions, WithoutAnAddressATransportOnlyReceives) {
  auto transport = TcpTransport::Create({.listen = ""}).value();
  EXPECT_EQ(transport->address(), "");
  auto image = std::make_shared<InPlaceImage>(std::vector<HostSpan>{});
  EXPECT_EQ(transport->Serve(image, /*receiver=*/"").status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(TcpTransportOptions, TheAdvertisedAddressesAreInTheDescriptor) {
  auto transport =
      TcpTransport::Create({.listen = "0.0.0.0:0", .advertise = {"127.0.0.1:0", "node-a.example:77"}})
          .value();
  auto serving =
      transport->Serve(std::make_shared<InPlaceImage>(std::vector<HostSpan>{}), /*receiver=*/"").value();
  EXPECT_THAT(
      DecodeDescriptor(serving->descriptor())->addresses,
      testing::ElementsAre(testing::MatchesRegex("127\\.0\\.0\\.1:[1-9][0-9]*"), "node-a.example:77"));
}

}  // namespace
}  // namespace tensorcast::transport::tcp
