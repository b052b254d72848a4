// A connection's frames, in both directions: the reader takes them off bytes as they arrive, in any pieces;
// the writer queues them and sends what the socket takes, pieces of the image straight from where they lie.
// One owner thread.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/memory/host_pool.h"
#include "transport/pull/wire.h"
#include "transport/tcp/byte_stream.h"

namespace tensorcast::transport::tcp {

using pull::Data;
using pull::Frame;

class FrameReader {
 public:
  // Where bytes can be received to, at most `max` of them (never none after Next gave nothing); they count
  // once Received was called.
  iovec Room(size_t max = pull::kMaxFrameHeadBytes);
  void Received(size_t bytes) { end_ += bytes; }

  // The next frame; nullopt: more bytes are needed. After DATA come the bytes of its piece: TakePiece, then
  // the socket.
  absl::StatusOr<std::optional<Frame>> Next();
  // Moves bytes of the piece that came with its head: at most `into`; how many.
  size_t TakePiece(HostSpan into);

  bool empty() const { return begin_ == end_; }

 private:
  std::array<char, pull::kMaxFrameHeadBytes> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

class FrameWriter {
 public:
  void Put(const Frame& frame);
  // In front of what has not begun to be sent, but behind others that were put so.
  void PutAhead(const Frame& frame);
  // DATA: its head, and the piece from memory that `hold` keeps in place until it is sent. REQUIRES: the
  // span is as long as the head says.
  void PutPiece(const Data& head, ConstHostSpan piece, std::shared_ptr<void> hold);

  // Sends what the socket takes now, at most about `max` bytes, and what the stream has unsent; how many
  // bytes of pieces were among them.
  absl::StatusOr<uint64_t> Flush(ByteStream& stream, uint64_t max);

  bool empty() const { return queue_.empty(); }
  size_t frames() const { return queue_.size(); }
  // Whether a frame that was put ahead is not sent.
  bool has_ahead() const { return ahead_ > 0; }
  // What is queued of pieces.
  uint64_t piece_bytes() const { return piece_bytes_; }
  // True when part of a frame was sent: no other frame may follow before the rest of it.
  bool within_frame() const { return within_frame_; }
  // Drops everything, and the holds.
  void Clear();
  // Drops what has not begun to be sent.
  void ClearUnsent();

 private:
  struct Queued {
    std::string head;
    size_t head_sent = 0;
    ConstHostSpan piece;  // what is left of it
    std::shared_ptr<void> hold;
    bool ahead = false;
  };

  static void AddParts(const Queued& frame, std::vector<iovec>& parts, uint64_t& bytes);
  // Takes `bytes` off the front of the queue; how many of them were of pieces.
  uint64_t Sent(size_t bytes);

  std::deque<Queued> queue_;
  std::vector<iovec> parts_;  // of one call; kept for its memory
  uint64_t piece_bytes_ = 0;
  size_t ahead_ = 0;  // frames that were put ahead and are not sent
  bool within_frame_ = false;
};

}  // namespace tensorcast::transport::tcp
