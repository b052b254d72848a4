// Reads and writes whole frames, with their descriptors, over a non-blocking unix socket. Internal to this
// folder; thread-compatible.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/handles/codec.h"
#include "core/handles/handles.h"

namespace tensorcast {

struct Received {
  size_t bytes = 0;           // 0 and not `closed`: no bytes have arrived
  bool closed = false;        // the peer closed or reset the connection
  std::vector<UniqueFd> fds;  // close-on-exec
  bool lost_fds = false;      // the kernel dropped descriptors beyond the buffer or this process's limit
};

// Reads the bytes that have arrived, up to buffer.size(), with up to `max_fds` + 1 descriptors. An error
// means that the socket is broken.
absl::StatusOr<Received> ReceiveSome(int socket, std::span<std::byte> buffer, size_t max_fds);

// Sends as many bytes as the socket accepts now, and returns their number; `fds` go with the first byte.
// UNAVAILABLE if the peer is gone. REQUIRES: at most kMaxFrameDescriptors descriptors.
absl::StatusOr<size_t> SendSome(int socket, std::string_view bytes, std::span<const int> fds);

struct IncomingFrame {
  Frame frame;
  std::vector<UniqueFd> fds;  // came with the frame
};

// Never reads past the current frame, so a received descriptor always belongs to that frame.
class FrameReader {
 public:
  FrameReader(size_t max_frame_bytes, size_t max_fds)
      : max_frame_bytes_(max_frame_bytes), max_fds_(max_fds) {}

  // The next frame; nullopt if no complete frame has arrived, or if the peer closed the connection
  // (closed()). INVALID_ARGUMENT if the peer violates the protocol, RESOURCE_EXHAUSTED if this process has no
  // descriptors left. An error is final.
  absl::StatusOr<std::optional<IncomingFrame>> Read(int socket);
  bool closed() const { return closed_; }
  // The descriptors of a frame that did not arrive completely.
  std::vector<UniqueFd> TakeFds() { return std::exchange(fds_, {}); }

 private:
  // Reads into `buffer`; true when `buffer` is full. `filled` is the number of bytes so far.
  absl::StatusOr<bool> Fill(int socket, std::span<std::byte> buffer, size_t& filled);

  const size_t max_frame_bytes_;
  const size_t max_fds_;  // with a frame
  std::array<std::byte, kFramePrefixBytes> prefix_{};
  size_t prefix_filled_ = 0;
  std::vector<std::byte> body_;
  size_t body_filled_ = 0;
  std::vector<UniqueFd> fds_;
  bool closed_ = false;
};

class FrameWriter {
 public:
  // Queues a frame. `fds`, at most kMaxFrameDescriptors, must stay open until the frame's first byte is sent.
  absl::Status Add(const Frame& frame, std::vector<int> fds = {});
  // Sends as many queued bytes as the socket accepts now. UNAVAILABLE if the peer is gone.
  absl::Status Flush(int socket);
  bool empty() const { return queue_.empty(); }

 private:
  struct Item {
    std::string bytes;
    size_t sent = 0;
    std::vector<int> fds;
  };
  std::deque<Item> queue_;
};

}  // namespace tensorcast
