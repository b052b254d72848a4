#include "transport/tcp/byte_stream.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "base/status.h"

namespace tensorcast::transport::tcp {
namespace {

// What the result of a system call on a socket comes to.
absl::StatusOr<size_t> Moved(ssize_t result, const char* what) {
  if (result >= 0) return static_cast<size_t>(result);
  // An interrupted call moved nothing: epoll is level-triggered, and brings the caller back.
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return size_t{0};
  return ErrnoStatus(errno, what, "a connection");
}

class PlainStream : public ByteStream {
 public:
  explicit PlainStream(UniqueFd socket) : socket_(std::move(socket)) {}

  int fd() const override { return socket_.get(); }
  uint32_t Events(bool has_output) const override { return has_output ? EPOLLIN | EPOLLOUT : EPOLLIN; }
  bool has_buffered() const override { return false; }
  bool has_unsent() const override { return false; }
  const std::string& peer() const override { return nobody_; }
  absl::Status CheckPeer() const override { return absl::OkStatus(); }

  absl::StatusOr<size_t> Read(std::span<const iovec> into) override {
    msghdr message = MessageOf(into);
    const ssize_t result = recvmsg(socket_.get(), &message, 0);
    // No bytes are the end of the stream, since callers always offer room.
    if (result == 0) return absl::UnavailableError("the other end closed the connection");
    return Moved(result, "read from");
  }

  absl::StatusOr<size_t> Write(std::span<const iovec> from) override {
    const msghdr message = MessageOf(from);
    // A peer that is gone is an error here, and not a signal that ends the process.
    return Moved(sendmsg(socket_.get(), &message, MSG_NOSIGNAL), "write to");
  }

 private:
  static msghdr MessageOf(std::span<const iovec> parts) {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts.data());
    message.msg_iovlen = parts.size();
    return message;
  }

  const UniqueFd socket_;
  const std::string nobody_;
};

}  // namespace

std::unique_ptr<ByteStream> NewPlainStream(UniqueFd socket) {
  return std::make_unique<PlainStream>(std::move(socket));
}

}  // namespace tensorcast::transport::tcp
