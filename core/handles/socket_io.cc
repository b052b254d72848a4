#include "core/handles/socket_io.h"

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

}  // namespace tensorcast
