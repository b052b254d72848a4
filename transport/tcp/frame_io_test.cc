// In which order queued frames are sent, whatever the socket takes at a time.
#include "transport/tcp/frame_io.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/log/check.h"

namespace tensorcast::transport::tcp::frame_io_test {
namespace {

using pull::Cancel;
using pull::Have;

// Takes so many bytes and keeps them.
class NarrowStream final : public ByteStream {
 public:
  int fd() const override { return -1; }
  uint32_t Events(bool) const override { return 0; }
  bool has_buffered() const override { return false; }
  bool has_unsent() const override { return false; }
  const std::string& peer() const override { return taken; }
  absl::Status CheckPeer() const override { return absl::OkStatus(); }
  absl::StatusOr<size_t> Read(std::span<const iovec>) override { return 0; }
  absl::StatusOr<size_t> Write(std::span<const iovec> from) override {
    if (room == 0 && closed) return absl::UnavailableError("the other end has closed");
    size_t written = 0;
    for (const iovec& part : from) {
      const size_t take = std::min(room, part.iov_len);
      taken.append(static_cast<const char*>(part.iov_base), take);
      room -= take;
      written += take;
    }
    return written;
  }

  size_t room = 0;
  bool closed = false;  // behind that room
  std::string taken;
};

class FrameWriterTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kAll = 1 << 20;

  void PutPiece(uint64_t id) {
    const ConstHostSpan piece = std::as_bytes(std::span(piece_));
    writer_.PutPiece({.request_id = id, .offset = 0, .bytes = static_cast<uint32_t>(piece.size())}, piece,
                     nullptr);
  }
  void Send(size_t bytes) {
    stream_.room = bytes;
    CHECK_OK(writer_.Flush(stream_, kAll).status());
  }
  // Everything that is left: the order in which the frames were sent, HAVE by its first chunk and DATA,
  // CANCEL by the request.
  std::vector<uint64_t> Order() {
    Send(kAll);
    EXPECT_TRUE(writer_.empty());
    std::vector<uint64_t> order;
    for (std::string_view left = stream_.taken; !left.empty();) {
      const pull::DecodedFrame next = pull::DecodeFrame(left).value().value();
      left.remove_prefix(next.bytes);
      if (const auto* have = std::get_if<Have>(&next.frame)) order.push_back(have->first);
      if (const auto* cancel = std::get_if<Cancel>(&next.frame)) order.push_back(cancel->id);
      if (const auto* data = std::get_if<Data>(&next.frame)) {
        order.push_back(data->request_id);
        left.remove_prefix(data->bytes);
      }
    }
    return order;
  }

  std::string piece_ = std::string(100, 'x');
  NarrowStream stream_;
  FrameWriter writer_;
};

TEST_F(FrameWriterTest, PutAhead_SendsFramesBeforeWaitingOnes) {
  PutPiece(1);
  writer_.Put(Cancel{.id = 2});
  EXPECT_FALSE(writer_.has_ahead());
  writer_.PutAhead(Have{.first = 64, .words = {1}});
  writer_.PutAhead(Have{.first = 128, .words = {1}});
  EXPECT_TRUE(writer_.has_ahead());
  EXPECT_THAT(Order(), ::testing::ElementsAre(64, 128, 1, 2));
  EXPECT_FALSE(writer_.has_ahead());
}

TEST_F(FrameWriterTest, FrameInProgress_IsFinishedBeforeFramesPutAhead) {
  for (size_t sent = 1; sent < pull::kDataHeadBytes + piece_.size(); ++sent) {
    stream_.taken.clear();
    PutPiece(1);
    PutPiece(2);
    Send(sent);
    writer_.PutAhead(Have{.first = 64, .words = {1}});
    EXPECT_THAT(Order(), ::testing::ElementsAre(1, 64, 2)) << sent;
  }
}

TEST_F(FrameWriterTest, UrgentFrameInProgress_IsFinishedFirst) {
  PutPiece(1);
  writer_.PutAhead(Have{.first = 64, .words = {1}});
  Send(5);
  writer_.PutAhead(Have{.first = 128, .words = {1}});
  EXPECT_THAT(Order(), ::testing::ElementsAre(64, 128, 1));
}

// A receiver that has all that it wanted closes: the write after its last bytes fails.
TEST_F(FrameWriterTest, FailedWrite_StillCountsBytesBeforeIt) {
  for (uint64_t id = 1; id <= 300; ++id) PutPiece(id);  // more parts than one system call takes
  const size_t head = pull::EncodeFrame(Data{.request_id = 300, .offset = 0, .bytes = 100}).size();
  stream_.room = 128 * (head + piece_.size());  // as many frames as one takes
  stream_.closed = true;
  const absl::StatusOr<uint64_t> sent = writer_.Flush(stream_, kAll);
  ASSERT_TRUE(sent.ok()) << sent.status();
  EXPECT_GE(*sent, 127 * piece_.size());
  EXPECT_FALSE(writer_.Flush(stream_, kAll).ok());
}

TEST_F(FrameWriterTest, ClearUnsent_DropsFramesThatHaveNotStarted) {
  PutPiece(1);
  writer_.PutAhead(Have{.first = 64, .words = {1}});
  Send(5);
  writer_.PutAhead(Have{.first = 128, .words = {1}});
  writer_.ClearUnsent();
  EXPECT_TRUE(writer_.has_ahead());
  EXPECT_EQ(writer_.piece_bytes(), 0u);
  writer_.PutAhead(Have{.first = 192, .words = {1}});
  writer_.Put(Cancel{.id = 2});
  EXPECT_THAT(Order(), ::testing::ElementsAre(64, 192, 2));
  writer_.PutAhead(Have{.first = 64, .words = {1}});
  writer_.ClearUnsent();
  EXPECT_TRUE(writer_.empty());
  EXPECT_FALSE(writer_.has_ahead());
}

}  // namespace
}  // namespace tensorcast::transport::tcp::frame_io_test
