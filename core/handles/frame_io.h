// Whole frames, and the descriptors beside them, over a non-blocking unix socket, and the sends and receives
// that they are made of. Both ends of the handle socket use this; internal to this folder. Thread-compatible.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/handles/codec.h"
#include "core/handles/handles.h"

namespace tensorcast {

struct Received {
  size_t bytes = 0;         // 0 with neither flag: nothing is there now
  bool closed = false;      // the peer closed its end, or reset the connection
  UniqueFd fd;              // close-on-exec
  bool excess_fds = false;  // more than one came; the others are closed already
};

// Reads what is there, up to buffer.size() bytes. An error means that the socket is broken.
absl::StatusOr<Received> ReceiveSome(int socket, std::span<std::byte> buffer);

// Sends what the socket takes, `fd` (unless -1) with the first byte of it. 0 when it takes nothing now.
// UNAVAILABLE when the peer is gone.
absl::StatusOr<size_t> SendSome(int socket, std::string_view bytes, int fd);

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
