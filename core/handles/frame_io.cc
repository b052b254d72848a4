#include "core/handles/frame_io.h"

#include <utility>

#include "base/status.h"
#include "core/handles/socket_io.h"

namespace tensorcast {

absl::StatusOr<bool> FrameReader::Fill(int socket, std::span<std::byte> buffer, size_t& filled) {
  while (filled < buffer.size()) {
    TC_ASSIGN_OR_RETURN(Received received, ReceiveSome(socket, buffer.subspan(filled)));
    filled += received.bytes;
    if (received.excess_fds || (received.fd && fd_)) {
      return absl::InvalidArgumentError("handle socket: more than one descriptor with a frame");
    }
    if (received.fd) fd_ = std::move(received.fd);
    if (received.closed) closed_ = true;
    if (received.bytes == 0) return false;
  }
  return true;
}

absl::StatusOr<std::optional<IncomingFrame>> FrameReader::Read(int socket) {
  if (prefix_filled_ < prefix_.size()) {
    TC_ASSIGN_OR_RETURN(const bool whole, Fill(socket, prefix_, prefix_filled_));
    if (!whole) return std::nullopt;
    TC_ASSIGN_OR_RETURN(const size_t length, DecodeFramePrefix(prefix_, max_frame_bytes_));
    body_.resize(length);
    body_filled_ = 0;
  }
  TC_ASSIGN_OR_RETURN(const bool whole, Fill(socket, body_, body_filled_));
  if (!whole) return std::nullopt;
  prefix_filled_ = 0;
  TC_ASSIGN_OR_RETURN(Frame frame, DecodeFrame(body_));
  return IncomingFrame{std::move(frame), std::move(fd_)};
}

absl::Status FrameWriter::Add(const Frame& frame, int fd) {
  TC_ASSIGN_OR_RETURN(std::string bytes, EncodeFrame(frame));
  queue_.push_back({std::move(bytes), 0, fd});
  return absl::OkStatus();
}

absl::Status FrameWriter::Flush(int socket) {
  while (!queue_.empty()) {
    Item& item = queue_.front();
    const std::string_view rest = std::string_view(item.bytes).substr(item.sent);
    TC_ASSIGN_OR_RETURN(const size_t sent, SendSome(socket, rest, item.sent == 0 ? item.fd : -1));
    if (sent == 0) return absl::OkStatus();
    item.sent += sent;
    if (item.sent == item.bytes.size()) queue_.pop_front();
  }
  return absl::OkStatus();
}

}  // namespace tensorcast
