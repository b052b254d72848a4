#include "core/handles/frame_io.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/status.h"

namespace tensorcast {
namespace {

// Room for more than the one descriptor that is allowed: those beyond are seen, and closed, here. What does
// not fit even this the kernel does not install.
constexpr size_t kControlFds = 16;

void TakeDescriptors(msghdr& message, Received& received) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int raw = -1;
      std::memcpy(&raw, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      UniqueFd fd(raw);
      if (received.fd) {
        received.excess_fds = true;
      } else {
        received.fd = std::move(fd);
      }
    }
  }
  // Each descriptor that arrived is closed by its UniqueFd, wanted or not: a peer cannot fill our table.
  if ((message.msg_flags & MSG_CTRUNC) != 0) received.excess_fds = true;
}

}  // namespace

absl::StatusOr<Received> ReceiveSome(int socket, std::span<std::byte> buffer) {
  iovec iov{buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kControlFds * sizeof(int))];
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t size;
  do {
    size = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  Received received;
  if (size < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return received;
    if (errno != ECONNRESET) return ErrnoStatus(errno, "receiving from", "the handle socket");
    received.closed = true;
    return received;
  }
  TakeDescriptors(message, received);
  received.bytes = static_cast<size_t>(size);
  received.closed = size == 0;
  return received;
}

absl::StatusOr<size_t> SendSome(int socket, std::string_view bytes, int fd) {
  iovec iov{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  ssize_t size;
  do {
    size = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (size < 0 && errno == EINTR);
  if (size >= 0) return static_cast<size_t>(size);
  if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
  if (errno == EPIPE || errno == ECONNRESET) {
    return absl::UnavailableError("the other end of the handle socket is closed");
  }
  return ErrnoStatus(errno, "sending to", "the handle socket");
}

absl::StatusOr<bool> FrameReader::Fill(int socket, std::span<std::byte> buffer, size_t& filled) {
  while (filled < buffer.size()) {
    TC_ASSIGN_OR_RETURN(Received received, ReceiveSome(socket, buffer.subspan(filled)));
    filled += received.bytes;
    if (received.excess_fds || (received.fd && fd_)) {
      return absl::InvalidArgumentError("handle socket: more than one descriptor with a frame");
    }
    if (received.fd) fd_ = std::move(received.fd);
    if (received.closed) closed_ = true;
    // Nothing more for now, or the end: what there is of the frame is kept for the next call.
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
    // The descriptor goes with the first byte alone; a frame that is sent in parts must not bring it twice.
    TC_ASSIGN_OR_RETURN(const size_t sent, SendSome(socket, rest, item.sent == 0 ? item.fd : -1));
    if (sent == 0) return absl::OkStatus();
    item.sent += sent;
    if (item.sent == item.bytes.size()) queue_.pop_front();
  }
  return absl::OkStatus();
}

}  // namespace tensorcast
