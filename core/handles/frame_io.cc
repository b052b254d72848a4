#include "core/handles/frame_io.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/posix/process_limits.h"
#include "base/status.h"

namespace tensorcast {
namespace {

// Room for the descriptors of one message.
struct Control {
  alignas(cmsghdr) char bytes[CMSG_SPACE(kMaxFrameDescriptors * sizeof(int))];
};

// Each descriptor that arrived gets an owner, wanted or not, so that a peer cannot fill this process's table.
void TakeDescriptors(msghdr& message, Received& received) {
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int raw = -1;
      std::memcpy(&raw, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      received.fds.emplace_back(raw);
    }
  }
  // The kernel drops descriptors that do not fit, and those beyond the limit of this process.
  received.lost_fds = (message.msg_flags & MSG_CTRUNC) != 0;
}

}  // namespace

absl::StatusOr<Received> ReceiveSome(int socket, std::span<std::byte> buffer, size_t max_fds) {
  iovec iov{buffer.data(), buffer.size()};
  Control control;
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  // The kernel installs no more descriptors than this holds. One more than is allowed shows that more came.
  message.msg_controllen = CMSG_SPACE(std::min(max_fds + 1, kMaxFrameDescriptors) * sizeof(int));
  ssize_t size;
  do {
    size = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  Received received;
  if (size < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return received;
    // A peer that died with bytes unread resets the connection: to this side that is an end like any other.
    if (errno != ECONNRESET) return ErrnoStatus(errno, "receive from", "the handle socket");
    received.closed = true;
    return received;
  }
  TakeDescriptors(message, received);
  received.bytes = static_cast<size_t>(size);
  received.closed = size == 0;
  return received;
}

absl::StatusOr<size_t> SendSome(int socket, std::string_view bytes, std::span<const int> fds) {
  iovec iov{const_cast<char*>(bytes.data()), bytes.size()};
  Control control;
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    CHECK_LE(fds.size(), kMaxFrameDescriptors);
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    // CMSG_NXTHDR and the kernel read the padding too.
    std::memset(control.bytes, 0, message.msg_controllen);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  ssize_t size;
  do {
    size = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (size < 0 && errno == EINTR);
  if (size >= 0) return static_cast<size_t>(size);
  if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
  if (errno == EPIPE || errno == ECONNRESET) {
    return absl::UnavailableError(
        "send to the handle socket: the other process closed the connection; connect again");
  }
  return ErrnoStatus(errno, "send to", "the handle socket");
}

absl::StatusOr<bool> FrameReader::Fill(int socket, std::span<std::byte> buffer, size_t& filled) {
  while (filled < buffer.size()) {
    TC_ASSIGN_OR_RETURN(Received received, ReceiveSome(socket, buffer.subspan(filled), max_fds_));
    filled += received.bytes;
    for (UniqueFd& fd : received.fds) fds_.push_back(std::move(fd));
    // Checked before lost_fds: too many descriptors are the peer's fault, whatever this process could open.
    if (fds_.size() > max_fds_) {
      return absl::InvalidArgumentError(absl::StrCat("read a frame: more than ", max_fds_,
                                                     " descriptors came with the frame", kOneRelease));
    }
    if (received.lost_fds) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "read a frame: this process has no file descriptor left for the descriptors of the frame (limit ",
          DescriptorLimit(), "); raise the limit of open files (`ulimit -n`)"));
    }
    if (received.closed) closed_ = true;
    // Nothing more for now, or the end: what there is of the frame is kept for the next call.
    if (received.bytes == 0) return false;
  }
  return true;
}

// Two steps, each of which may take several calls: the prefix, then the body that it announces. What has
// arrived stays in the reader. An error is final: the stream has no place at which to begin anew.
absl::StatusOr<std::optional<IncomingFrame>> FrameReader::Read(int socket) {
  if (prefix_filled_ < prefix_.size()) {
    TC_ASSIGN_OR_RETURN(const bool whole, Fill(socket, prefix_, prefix_filled_));
    if (!whole) return std::nullopt;
    TC_ASSIGN_OR_RETURN(const size_t length, DecodeFramePrefix(prefix_, max_frame_bytes_));
    // At most max_frame_bytes_: no peer can have more memory taken.
    body_.resize(length);
    body_filled_ = 0;
  }
  TC_ASSIGN_OR_RETURN(const bool whole, Fill(socket, body_, body_filled_));
  if (!whole) return std::nullopt;
  prefix_filled_ = 0;
  TC_ASSIGN_OR_RETURN(Frame frame, DecodeFrame(body_));
  return IncomingFrame{std::move(frame), std::exchange(fds_, {})};
}

absl::Status FrameWriter::Add(const Frame& frame, std::vector<int> fds) {
  TC_ASSIGN_OR_RETURN(std::string bytes, EncodeFrame(frame));
  queue_.push_back({std::move(bytes), 0, std::move(fds)});
  return absl::OkStatus();
}

absl::Status FrameWriter::Flush(int socket) {
  while (!queue_.empty()) {
    Item& item = queue_.front();
    const std::string_view rest = std::string_view(item.bytes).substr(item.sent);
    // The descriptors go with the first byte alone; a frame that is sent in parts must not bring them twice.
    const std::span<const int> fds = item.sent == 0 ? std::span<const int>(item.fds) : std::span<const int>();
    TC_ASSIGN_OR_RETURN(const size_t sent, SendSome(socket, rest, fds));
    if (sent == 0) return absl::OkStatus();
    item.sent += sent;
    if (item.sent == item.bytes.size()) queue_.pop_front();
  }
  return absl::OkStatus();
}

}  // namespace tensorcast
