#include "core/handles/client_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/posix/unix_socket.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast {
namespace {

absl::Status Late(const std::string& path) {
  return absl::DeadlineExceededError(absl::StrCat(
      "ask the daemon at ", path,
      ": the daemon did not answer in time; try again with a longer timeout, or check whether the daemon is "
      "stuck"));
}

absl::Status ConnectError(int error_number, const std::string& path) {
  if (error_number == ENOENT || error_number == ECONNREFUSED) {
    return absl::UnavailableError(
        absl::StrCat("connect to ", path, ": no daemon listens there; start the daemon, or check the path"));
  }
  if (error_number == EACCES) {
    return absl::PermissionDeniedError(
        absl::StrCat("connect to ", path,
                     ": this process may not use the socket; run this process as the daemon's user, or as a "
                     "member of a group in daemon.handle_groups"));
  }
  // A connect that blocks says by these that its time is over.
  if (error_number == EAGAIN || error_number == EINPROGRESS) return Late(path);
  return ErrnoStatus(error_number, "connect to the handle socket", path);
}

// The kernel has no readiness for a full backlog of a unix socket. Connecting therefore blocks for as long as
// the deadline allows, and a cancellation cannot end it. The timeout stays on the socket without effect: all
// later calls are non-blocking (MSG_DONTWAIT).
absl::Status ConnectBy(int socket, const sockaddr_un& address, const std::string& path, SteadyTime deadline) {
  const absl::Duration left = TimeLeft(deadline);
  if (left <= absl::ZeroDuration()) return Late(path);
  // A zero timeout would mean none.
  const timeval timeout = absl::ToTimeval(std::clamp(left, absl::Milliseconds(1), absl::Hours(1)));
  if (setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) != 0) {
    return ErrnoStatus(errno, "set the timeout of", path);
  }
  while (connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno == EINTR) continue;
    return ConnectError(errno, path);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ClientChannel>> ClientChannel::Connect(const std::string& path,
                                                                      SteadyTime deadline,
                                                                      const Cancellation& cancellation,
                                                                      const std::vector<gid_t>* groups) {
  TC_ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(path));
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoStatus(errno, "create", "a unix socket");
  TC_RETURN_IF_ERROR(ConnectBy(fd.get(), address, path, deadline));
  // The path may belong to another process, so a caller that sends secrets or trusts the memory checks it.
  if (groups != nullptr) {
    TC_RETURN_IF_ERROR(Annotate(CheckPeer(fd.get(), *groups), absl::StrCat("check the server at ", path)));
  }
  std::unique_ptr<ClientChannel> channel(new ClientChannel(std::move(fd), path));
  const EndedBy ended(*channel, cancellation);
  TC_ASSIGN_OR_RETURN(const IncomingFrame answer, channel->Exchange(HelloFrame{}, {}, deadline));
  const auto* ack = std::get_if<HelloAckFrame>(&answer.frame);
  if (ack == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("connect to ", path, ": the server sent ", FrameName(answer.frame),
                     " instead of HELLO_ACK; check that a TensorCast daemon listens at this path"));
  }
  if (ack->version != kHandleProtocolVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "connect to ", path, ": the daemon speaks version ", ack->version,
        " of the handle protocol, but this process speaks version ", kHandleProtocolVersion, kOneRelease));
  }
  return channel;
}

absl::Status ClientChannel::WaitFor(short events, SteadyTime deadline) {
  while (true) {
    const absl::Duration left = TimeLeft(deadline);
    if (left <= absl::ZeroDuration()) return Late(path_);
    // In whole milliseconds, rounded up, so that poll does not return early again and again.
    const absl::Duration wait =
        std::min(absl::Ceil(left, absl::Milliseconds(1)), absl::Duration(absl::Hours(1)));
    pollfd poll_fd{socket_.get(), events, 0};
    const int ready = poll(&poll_fd, 1, static_cast<int>(absl::ToInt64Milliseconds(wait)));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "wait for the daemon at", path_);
  }
}

absl::Status ClientChannel::Send(const Frame& frame, std::vector<int> fds, SteadyTime deadline) {
  TC_RETURN_IF_ERROR(writer_.Add(frame, std::move(fds)));
  while (true) {
    TC_RETURN_IF_ERROR(writer_.Flush(socket_.get()));
    if (writer_.empty()) return absl::OkStatus();
    TC_RETURN_IF_ERROR(WaitFor(POLLOUT, deadline));
  }
}

// Shutdown ends the wait: poll then reports the end of the connection, and the reader finds it.
absl::StatusOr<IncomingFrame> ClientChannel::Receive(SteadyTime deadline) {
  while (true) {
    absl::StatusOr<std::optional<IncomingFrame>> incoming = reader_.Read(socket_.get());
    // Errors in what the daemon sends are not an invalid argument of the caller.
    if (absl::IsInvalidArgument(incoming.status())) {
      return absl::InternalError(
          absl::StrCat("read from the daemon at ", path_, ": ", incoming.status().message()));
    }
    TC_RETURN_IF_ERROR(incoming.status());
    if (incoming->has_value()) {
      if (const auto* error = std::get_if<ErrorFrame>(&(*incoming)->frame)) {
        return Annotate(error->status, absl::StrCat("the daemon at ", path_));
      }
      return **std::move(incoming);
    }
    if (reader_.closed()) {
      return absl::UnavailableError(
          absl::StrCat("read from the daemon at ", path_, ": the daemon closed the connection; try again"));
    }
    TC_RETURN_IF_ERROR(WaitFor(POLLIN, deadline));
  }
}

absl::StatusOr<IncomingFrame> ClientChannel::Exchange(const Frame& frame, std::vector<int> fds,
                                                      SteadyTime deadline) {
  const absl::Status sent = Send(frame, std::move(fds), deadline);
  // A server that refuses says why before it closes: the reason is there to be read though sending failed.
  if (!sent.ok() && !absl::IsUnavailable(sent)) return sent;
  return Receive(deadline);
}

// Frames of other kinds are passed over: HAVE and HAVE_END alone can come unrequested, and the mirror that
// would take them has ended.
absl::Status ClientChannel::TakeError() {
  while (true) {
    TC_ASSIGN_OR_RETURN(std::optional<IncomingFrame> incoming, reader_.Read(socket_.get()));
    if (!incoming.has_value()) return absl::OkStatus();
    if (const auto* error = std::get_if<ErrorFrame>(&incoming->frame)) {
      return Annotate(error->status, absl::StrCat("the daemon at ", path_));
    }
  }
}

void ClientChannel::Shutdown() { shutdown(socket_.get(), SHUT_RDWR); }

// POLLRDHUP tells of the end also while bytes lie unread that were sent before it.
bool ClientChannel::closed() const {
  pollfd poll_fd{socket_.get(), POLLRDHUP, 0};
  return poll(&poll_fd, 1, 0) > 0 && (poll_fd.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
}

}  // namespace tensorcast
