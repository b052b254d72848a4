// Sources as only a socket can have them: their bytes come singly, or end within a frame, or are none of the
// pull protocol's. What they may say in frames is ProtocolContract's (transport/testing).
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "core/replica/availability.h"
#include "transport/tcp/protocol_fixture.h"

namespace tensorcast::transport::tcp::tcp_pull_test {
namespace {

using ::testing::HasSubstr;

// A pull from a RawPeer, as far as its WELCOME.
class LyingSourceTest : public ProtocolTest {
 protected:
  absl::Status ConnectPull(const Welcome& welcome) {
    return ConnectPull([&] { source_.Send(welcome); });
  }
  absl::Status ConnectPull(const std::function<void()>& answer) {
    const Descriptor descriptor{
        .lane = std::string(kTcpLane), .image_bytes = kImageBytes, .addresses = {listener_.address()}};
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

  RawListener listener_;
  RawPeer source_;
  std::unique_ptr<Pull> pull_;
  Completions done_;
};

constexpr Welcome kWelcome = {.max_requests = 8, .max_request_bytes = 1 << 20, .image_bytes = kImageBytes};

TEST_F(LyingSourceTest, AnswerOfAnotherProtocol_IsRefused) {
  const absl::Status status = ConnectPull([&] { source_.SendBytes("HTTP/1.1 400 Bad Request\r\n"); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_TRUE(source_.IsClosed());
}

TEST_F(LyingSourceTest, SourceThatClosesInHandshake_IsUnavailable) {
  EXPECT_EQ(ConnectPull([&] { source_.Close(); }).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ConnectPull([&] { source_.Reset(); }).code(), absl::StatusCode::kUnavailable);
}

TEST_F(LyingSourceTest, PiecesSentByteByByte_ArriveWithTheirDigest) {
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

TEST_F(LyingSourceTest, SourceThatClosesWithinPiece_IsUnavailable) {
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

}  // namespace
}  // namespace tensorcast::transport::tcp::tcp_pull_test
