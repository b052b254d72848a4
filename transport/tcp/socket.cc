#include "transport/tcp/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast::transport::tcp {
namespace {

constexpr int kBacklog = 4096;
constexpr int kKeepaliveProbes = 3;

absl::Status SetOption(int socket, int level, int option, int value, std::string_view what) {
  if (setsockopt(socket, level, option, &value, sizeof(value)) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, "set a socket's", what);
}

absl::StatusOr<UniqueFd> NewSocket(const SocketAddress& address) {
  UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoStatus(errno, "create", "a TCP socket");
  return fd;
}

// A peer that cannot be connected to is unreachable now, whatever the system calls it, or does not answer.
absl::Status ConnectError(int error_number) {
  const absl::Status status = ErrnoStatus(error_number, "connect", "by TCP");
  return absl::IsDeadlineExceeded(status) ? status : absl::UnavailableError(status.message());
}

}  // namespace

absl::StatusOr<UniqueFd> ListenOn(const SocketAddress& address) {
  TC_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(address));
  // The ends of connections that this host closed last for a minute; they must not keep a restarted daemon
  // from its port. Two that listen are refused all the same.
  TC_RETURN_IF_ERROR(SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1, "reuse of its address"));
  if (bind(fd.get(), address.get(), address.length) != 0 || listen(fd.get(), kBacklog) != 0) {
    const absl::Status status = ErrnoStatus(errno, "bind", "the socket");
    return absl::UnavailableError(
        absl::StrCat(status.message(), "; choose an address of this host and a free port"));
  }
  return fd;
}

absl::StatusOr<uint16_t> ListeningPort(int listener) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) {
    return ErrnoStatus(errno, "get", "the listener's port");
  }
  return PortOf(address.storage);
}

// The socket does not block, so most connects are in progress when this returns (EINPROGRESS).
absl::StatusOr<UniqueFd> StartConnecting(const SocketAddress& address, const SocketOptions& options) {
  TC_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(address));
  TC_RETURN_IF_ERROR(Configure(fd.get(), options));
  if (connect(fd.get(), address.get(), address.length) != 0 && errno != EINPROGRESS) {
    return ConnectError(errno);
  }
  return fd;
}

absl::Status ConnectResult(int socket) {
  // A connect that does not block tells its result once, by this option.
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  return error == 0 ? absl::OkStatus() : ConnectError(error);
}

absl::Status Configure(int socket, const SocketOptions& options) {
  // From 1 s, the unit of the keepalive options, to a day.
  const int timeout_ms = static_cast<int>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(options.peer_timeout), 1000, 24 * 3600 * 1000));
  // The pause before the first probe and the probes together take the whole timeout.
  const int between_s = std::max(1, timeout_ms / 1000 / (kKeepaliveProbes + 1));
  TC_RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"));
  // Keepalive notices a host that vanished while nothing is sent, TCP_USER_TIMEOUT one that takes nothing of
  // what is.
  TC_RETURN_IF_ERROR(SetOption(socket, SOL_SOCKET, SO_KEEPALIVE, 1, "keepalive"));
  TC_RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_KEEPIDLE, between_s, "TCP_KEEPIDLE"));
  TC_RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_KEEPINTVL, between_s, "TCP_KEEPINTVL"));
  TC_RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_KEEPCNT, kKeepaliveProbes, "TCP_KEEPCNT"));
  TC_RETURN_IF_ERROR(SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, timeout_ms, "TCP_USER_TIMEOUT"));
  const std::string& congestion = options.congestion_control;
  if (!congestion.empty() && setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, congestion.data(),
                                        static_cast<socklen_t>(congestion.size())) != 0) {
    return ErrnoStatus(errno, "choose the congestion control", congestion);
  }
  return absl::OkStatus();
}

}  // namespace tensorcast::transport::tcp
