// Receivers as only a socket can have them, and pending connections: the source answers or closes their
// connection, and serves all others as before. What they may say in frames is ProtocolContract's
// (transport/testing).
#include <gmock/gmock.h>

#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "core/replica/availability.h"
#include "transport/tcp/protocol_fixture.h"

namespace tensorcast::transport::tcp::tcp_source_test {
namespace {

using ::testing::HasSubstr;

TEST_F(ProtocolTest, FramesSentByteByByte_AreServed) {
  RawPeer peer = Connect();
  const Request request{.id = 1, .offset = 7, .bytes = 5000};
  for (const char byte : EncodeFrame(HelloFrame())) peer.SendBytes({&byte, 1});
  peer.NextAs<Welcome>();
  for (const char byte : EncodeFrame(request)) peer.SendBytes({&byte, 1});
  ExpectAnswer(peer, request);
}

TEST_F(ProtocolTest, CancelledRequest_EndsEarlyAndNextOneIsServed) {
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
  peer.Send(Cancel{.id = 1});  // it is over, and that is not an offence
  const Request next{.id = 2, .offset = 5, .bytes = 100000};
  peer.Send(next);
  ExpectAnswer(peer, next);
}

TEST_F(ProtocolTest, BytesThatAreNotFrames_EndOnlyTheirConnection) {
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

TEST_F(ProtocolTest, FirstFrameOtherThanHello_ClosesTheConnection) {
  const std::vector<Frame> frames = {
      Request{.id = 1, .offset = 0, .bytes = 1},
      Cancel{.id = 1},
      Bye{},
      Follow{},
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

// An image that fills, in 25 chunks.
class FillingSourceTest : public ProtocolTest {
 protected:
  static constexpr uint64_t kChunkBytes = 4096;

  void SetUp() override {
    ProtocolTest::SetUp();
    ServeFilling(kImageBytes);
  }
  void ServeFilling(uint64_t bytes) {
    availability_ = std::make_shared<Availability>(bytes, kChunkBytes);
    Serve(bytes, availability_);
  }
  RawPeer Follower() {
    RawPeer peer = Connect();
    peer.Send(HelloFrame());
    EXPECT_EQ(peer.NextAs<Welcome>().chunk_bytes, kChunkBytes);
    peer.Send(Follow{});
    return peer;
  }
  // HAVE frames until all chunks up to this one are told, one by one; how many.
  int AwaitTold(RawPeer& peer, uint32_t chunks) {
    Availability told(availability_->image_bytes(), kChunkBytes);
    int frames = 0;
    for (; told.count() < chunks && !HasFailure(); ++frames) {
      const Have have = peer.NextAs<Have>();
      told.AddWords(have.first, have.words);
    }
    return frames;
  }

  std::shared_ptr<Availability> availability_;
};

TEST_F(FillingSourceTest, PullWithoutFollow_IsToldNoChunks) {
  availability_->Add(0);
  RawPeer peer = Connect();
  peer.Send(HelloFrame());
  EXPECT_EQ(peer.NextAs<Welcome>().chunk_bytes, kChunkBytes);
  availability_->Add(1);
  const Request request{.id = 1, .offset = 0, .bytes = 2 * kChunkBytes};
  peer.Send(request);
  ExpectAnswer(peer, request);
  EXPECT_TRUE(peer.HasNothingToRead());
}

TEST_F(FillingSourceTest, ChunksAddedTogether_AreAnnouncedTogether) {
  ServeFilling(kLargeBytes);
  RawPeer peer = Follower();
  const uint32_t chunks = availability_->chunks();
  ASSERT_EQ(chunks, 12288u);
  const SteadyTime start = SteadyNow();
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) availability_->Add(chunk);
  const int frames = AwaitTold(peer, chunks);
  // As many announcements as there was time for, and as few frames for each as it has words.
  constexpr absl::Duration kInterval = absl::Milliseconds(10);
  const int64_t announcements = 2 + (SteadyNow() - start) / kInterval;
  const int64_t frames_each = (chunks / kHaveWordBits + kMaxHaveWords - 1) / kMaxHaveWords;
  EXPECT_LE(frames, announcements * frames_each);
  EXPECT_TRUE(peer.HasNothingToRead());
}

TEST_F(FillingSourceTest, FailedIngest_EndsConnectionsWithItsError) {
  ServeFilling(kLargeBytes);
  const uint32_t chunks = availability_->chunks();
  for (uint32_t chunk = 0; chunk + 1 < chunks; ++chunk) availability_->Add(chunk);
  RawPeer idle = Follower();
  RawPeer busy = Connect();
  busy.Send(HelloFrame());
  busy.NextAs<Welcome>();
  const uint64_t bytes = (chunks - 1) * kChunkBytes;
  busy.Send(Request{.id = 1, .offset = 0, .bytes = bytes});
  Data data = busy.NextAs<Data>();
  const absl::Status why = absl::DataLossError("the last chunk is wrong");
  availability_->End(why);
  AwaitTold(idle, chunks - 1);
  EXPECT_EQ(idle.NextAs<Error>(), (Error{.status = why}));
  uint64_t came = 0;
  Frame frame = data;
  for (; std::holds_alternative<Data>(frame); frame = busy.Next()) {
    came += busy.ReadBytes(std::get<Data>(frame).bytes).size();
  }
  EXPECT_LT(came, bytes);
  ASSERT_TRUE(std::holds_alternative<Error>(frame)) << frame.index();
  EXPECT_EQ(std::get<Error>(frame), (Error{.status = why}));
  RawPeer late = Connect();
  late.Send(HelloFrame());
  EXPECT_EQ(late.NextAs<Error>(), (Error{.status = why}));
}

TEST_F(ProtocolTest, ProtocolError_EndsOnlyItsConnection) {
  const std::vector<std::function<void(RawPeer&)>> offences = {
      [](RawPeer& peer) { peer.SendBytes("\x63garbage"); },
      [](RawPeer& peer) { peer.SendBytes(std::string("\x04\0\0\0\xff\xff\xff\xff", 8)); },
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

TEST_F(ProtocolTest, TooManyRequests_EndConnection) {
  Serve(kLargeBytes);
  RawPeer peer = Introduced();
  // The first is larger than what the kernel takes of an answer, so the others wait.
  for (uint64_t id = 1; id <= 200; ++id) peer.Send(Request{.id = id, .offset = 0, .bytes = kLargeBytes});
  EXPECT_TRUE(peer.IsClosed());
  ExpectServed();
}

TEST_F(ProtocolTest, ReceiverThatDoesNotRead_DelaysNoOtherAndIsRevoked) {
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

TEST_F(ProtocolTest, ConnectionsOfOnePull_AreLimited) {
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

TEST_F(ProtocolTest, SilentPendingConnections_GiveWayToNewOnes) {
  std::vector<RawPeer> pending;
  for (int i = 0; i < 500; ++i) pending.push_back(Connect());
  ExpectServed();
  // All but the last 64, and of those one made room for the receiver.
  for (int i = 0; i < 500 - 64; ++i) EXPECT_TRUE(pending[i].IsClosed()) << i;
  EXPECT_TRUE(pending.back().HasNothingToRead());
}

TEST_F(ProtocolTest, SilentPendingConnection_EndsAfterHelloTimeout) {
  Open({.hello_timeout = absl::Milliseconds(20)});
  RawPeer silent = Connect();
  RawPeer slow = Connect();
  slow.SendBytes(EncodeFrame(HelloFrame()).substr(0, 20));
  EXPECT_TRUE(silent.IsClosed());
  EXPECT_TRUE(slow.IsClosed());
}

}  // namespace
}  // namespace tensorcast::transport::tcp::tcp_source_test
