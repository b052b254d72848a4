// Whole frames, and the descriptors beside them, over a non-blocking unix socket. Both ends of the handle
// socket use this; internal to this folder. Thread-compatible.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/handles/codec.h"
#include "core/handles/handles.h"

namespace tensorcast {

struct IncomingFrame {
  Frame frame;
  UniqueFd fd;  // came with the frame
};

// Never reads past the frame in hand, so a descriptor always belongs to that frame.
class FrameReader {
 public:
  explicit FrameReader(size_t max_frame_bytes) : max_frame_bytes_(max_frame_bytes) {}

  // The next frame; nullopt when it is not whole yet, or the peer closed its end (closed()). INVALID_ARGUMENT
  // when the peer breaks the protocol.
  absl::StatusOr<std::optional<IncomingFrame>> Read(int socket);
  bool closed() const { return closed_; }

 private:
  // True once `size` bytes of `buffer` are there.
  absl::StatusOr<bool> Fill(int socket, std::span<std::byte> buffer, size_t& filled);

  const size_t max_frame_bytes_;
  std::array<std::byte, kFramePrefixBytes> prefix_{};
  size_t prefix_filled_ = 0;
  std::vector<std::byte> body_;
  size_t body_filled_ = 0;
  UniqueFd fd_;
  bool closed_ = false;
};

class FrameWriter {
 public:
  // Queues a frame; `fd`, unless -1, must stay open until the frame's first byte is sent.
  absl::Status Add(const Frame& frame, int fd = -1);
  // Sends what the socket takes. UNAVAILABLE when the peer is gone.
  absl::Status Flush(int socket);
  bool empty() const { return queue_.empty(); }

 private:
  struct Item {
    std::string bytes;
    size_t sent = 0;
    int fd = -1;
  };
  std::deque<Item> queue_;
};

}  // namespace tensorcast
