#include "transport/tcp/frame_io.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tensorcast::transport::tcp {
namespace {

// In one system call.
constexpr size_t kMaxParts = 256;

}  // namespace

iovec FrameReader::Room(size_t max) {
  // What is left, less than a frame, moves to the front.
  if (begin_ > 0) {
    std::copy(buffer_.begin() + begin_, buffer_.begin() + end_, buffer_.begin());
    end_ -= std::exchange(begin_, 0);
  }
  return {buffer_.data() + end_, std::min(max, buffer_.size() - end_)};
}

absl::StatusOr<std::optional<Frame>> FrameReader::Next() {
  absl::StatusOr<std::optional<pull::DecodedFrame>> decoded =
      pull::DecodeFrame(std::string_view(buffer_.data() + begin_, end_ - begin_));
  if (!decoded.ok()) return std::move(decoded).status();
  if (!decoded->has_value()) return std::nullopt;
  begin_ += (*decoded)->bytes;
  return std::move((*decoded)->frame);
}

size_t FrameReader::TakePiece(HostSpan into) {
  const size_t bytes = std::min(into.size(), end_ - begin_);
  std::memcpy(into.data(), buffer_.data() + begin_, bytes);
  begin_ += bytes;
  return bytes;
}

void FrameWriter::Put(const Frame& frame) {
  queue_.push_back({.head = pull::EncodeFrame(frame), .head_sent = 0, .piece = {}, .hold = nullptr});
}

// The queue is: the frame of which a part was sent, the frames put ahead in their order, and the rest. A
// frame that was begun has to go on, or the other end would take the next one for its rest.
void FrameWriter::PutAhead(const Frame& frame) {
  // The frame that is under way, then those put ahead, which may be what is under way.
  const size_t first = within_frame_ && !queue_.front().ahead ? 1 : 0;
  queue_.insert(
      queue_.begin() + static_cast<ptrdiff_t>(first + ahead_),
      {.head = pull::EncodeFrame(frame), .head_sent = 0, .piece = {}, .hold = nullptr, .ahead = true});
  ++ahead_;
}

void FrameWriter::PutPiece(const Data& head, ConstHostSpan piece, std::shared_ptr<void> hold) {
  queue_.push_back(
      {.head = pull::EncodeFrame(head), .head_sent = 0, .piece = piece, .hold = std::move(hold)});
  piece_bytes_ += head.bytes;
}

void FrameWriter::AddParts(const Queued& frame, std::vector<iovec>& parts, uint64_t& bytes) {
  const auto add = [&](const void* data, size_t size) {
    parts.push_back({const_cast<void*>(data), size});
    bytes += size;
  };
  if (frame.head_sent < frame.head.size()) {
    add(frame.head.data() + frame.head_sent, frame.head.size() - frame.head_sent);
  }
  if (!frame.piece.empty()) add(frame.piece.data(), frame.piece.size());
}

// Each system call takes the heads and pieces of many frames from where they lie; nothing is copied on the
// way to the kernel.
absl::StatusOr<uint64_t> FrameWriter::Flush(ByteStream& stream, uint64_t max) {
  uint64_t of_pieces = 0;
  for (uint64_t total = 0; total < max && !(queue_.empty() && !stream.has_unsent());) {
    parts_.clear();
    uint64_t bytes = 0;
    for (const Queued& frame : queue_) {
      // A frame takes two parts at most: its head, and its piece.
      if (total + bytes >= max || parts_.size() + 1 >= kMaxParts) break;
      AddParts(frame, parts_, bytes);
    }
    absl::StatusOr<size_t> written = stream.Write(parts_);
    if (!written.ok()) {
      // What went before it is with the receiver, and counts. A stream that failed fails the next write, too.
      if (of_pieces > 0) break;
      return std::move(written).status();
    }
    if (*written == 0) break;
    of_pieces += Sent(*written);
    total += *written;
    // The socket is full.
    if (*written < bytes) break;
  }
  return of_pieces;
}

uint64_t FrameWriter::Sent(size_t bytes) {
  uint64_t of_pieces = 0;
  while (bytes > 0) {
    Queued& frame = queue_.front();
    const size_t of_head = std::min(bytes, frame.head.size() - frame.head_sent);
    frame.head_sent += of_head;
    bytes -= of_head;
    const size_t of_piece = std::min(bytes, frame.piece.size());
    frame.piece = frame.piece.subspan(of_piece);
    bytes -= of_piece;
    of_pieces += of_piece;
    const bool sent = frame.head_sent == frame.head.size() && frame.piece.empty();
    within_frame_ = !sent;
    if (!sent) break;
    if (frame.ahead) --ahead_;
    queue_.pop_front();
  }
  piece_bytes_ -= of_pieces;
  return of_pieces;
}

void FrameWriter::ClearUnsent() {
  if (!within_frame_) {
    Clear();
    return;
  }
  // The frame that is under way has to go on, or what follows would be taken for its rest.
  queue_.erase(queue_.begin() + 1, queue_.end());
  ahead_ = queue_.front().ahead ? 1 : 0;
  piece_bytes_ = queue_.front().piece.size();
}

void FrameWriter::Clear() {
  queue_.clear();
  piece_bytes_ = 0;
  ahead_ = 0;
}

}  // namespace tensorcast::transport::tcp
