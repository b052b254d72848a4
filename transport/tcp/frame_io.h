// Reads and writes the frames of one connection (pull/wire.h). FrameReader decodes frames from bytes that
// arrive in parts of any length. FrameWriter queues frames and sends as much as the socket takes; it sends
// pieces of the image straight from their memory. Used by one thread at a time.
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
  // Free space for the next bytes of the connection, at most `max` bytes. Not empty if Next has just returned
  // nullopt. The caller writes bytes there and then calls Received with their number.
  iovec Room(size_t max = pull::kMaxFrameHeadBytes);
  void Received(size_t bytes) { end_ += bytes; }

  // The next frame; nullopt: more bytes are needed. INVALID_ARGUMENT for malformed bytes. After DATA the
  // caller takes the piece's first bytes with TakePiece, and reads its other bytes from the socket.
  absl::StatusOr<std::optional<Frame>> Next();
  // Copies bytes of the piece that have already arrived, as many as fit into `into`; returns their number.
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
  // Queues the frame behind a partly sent frame and earlier PutAhead frames, but before all other frames.
  void PutAhead(const Frame& frame);
  // Queues a DATA frame. `hold` keeps the piece's memory in place until the piece is sent. REQUIRES:
  // `piece` has head.bytes bytes.
  void PutPiece(const Data& head, ConstHostSpan piece, std::shared_ptr<void> hold);

  // Sends the stream's unsent bytes, and as many queued bytes as the socket takes now, about `max` at most.
  // Returns how many of the sent bytes belong to pieces.
  absl::StatusOr<uint64_t> Flush(ByteStream& stream, uint64_t max);

  bool empty() const { return queue_.empty(); }
  size_t frames() const { return queue_.size(); }
  // True until all frames of PutAhead are sent in full.
  bool has_ahead() const { return ahead_ > 0; }
  // The number of queued bytes of pieces.
  uint64_t piece_bytes() const { return piece_bytes_; }
  // True while the first frame is partly sent.
  bool within_frame() const { return within_frame_; }
  // Drops all frames and releases their holds.
  void Clear();
  // Drops all frames except a partly sent frame.
  void ClearUnsent();

 private:
  struct Queued {
    std::string head;
    size_t head_sent = 0;
    ConstHostSpan piece;  // the unsent bytes of the piece
    std::shared_ptr<void> hold;
    bool ahead = false;
  };

  static void AddParts(const Queued& frame, std::vector<iovec>& parts, uint64_t& bytes);
  // Removes `bytes` sent bytes from the front of the queue; returns how many of them belong to pieces.
  uint64_t Sent(size_t bytes);

  std::deque<Queued> queue_;
  std::vector<iovec> parts_;  // for one call of Flush; a member so that its memory is reused
  uint64_t piece_bytes_ = 0;
  size_t ahead_ = 0;  // frames of PutAhead that are not sent in full
  bool within_frame_ = false;
};

}  // namespace tensorcast::transport::tcp
