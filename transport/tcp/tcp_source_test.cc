// Receivers that break the pull protocol, or speak another version of it, and strangers: the source answers
// or closes their connection, and serves everybody else as before.
#include <gmock/gmock.h>

#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "transport/tcp/protocol_fixture.h"

namespace tensorcast::transport::tcp {
namespace {

using testing::HasSubstr;

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

}  // namespace
}  // namespace tensorcast::transport::tcp
