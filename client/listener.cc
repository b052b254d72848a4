#include "client/listener.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/address.h"
#include "base/posix/unique_fd.h"
#include "base/posix/unix_socket.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast::client {
namespace {

// How soon a cancellation is seen.
constexpr absl::Duration kLook = absl::Milliseconds(50);

absl::Status NoDaemon(const std::string& address, std::string_view why) {
  return absl::UnavailableError(absl::StrCat("no daemon at ", address, why,
                                             ": start one with \"tensorcast daemon\", or give the address of "
                                             "one that runs"));
}

// By a connection of its own: its errno tells apart what gRPC reports as one UNAVAILABLE.
absl::Status CheckSocket(const std::string& address) {
  const std::string path = SocketPath(address);
  TC_ASSIGN_OR_RETURN(const sockaddr_un name, UnixAddress(path));
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return ErrnoStatus(errno, "create", "a unix socket");
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0) {
    return absl::OkStatus();
  }
  switch (errno) {
    case EAGAIN:  // something listens, and many wait for it
      return absl::OkStatus();
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED:  // what is there is a file, or the socket of a process that has gone
      return NoDaemon(address, "");
    case EACCES:
      return absl::PermissionDeniedError(
          absl::StrCat("user ", geteuid(), " may not connect to ", path,
                       "; daemon.sock grants the operator role to the daemon's own user, client.sock the "
                       "client role to the groups of daemon.handle_groups: run this as that user, or as a "
                       "member of such a group"));
    default:
      return ErrnoStatus(errno, "connect to", path);
  }
}

// The error number of a TCP connection, 0 once it stands; ETIMEDOUT when the context ends first.
int TryConnect(const SocketAddress& address, const RequestContext& context) {
  const UniqueFd probe(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return errno;
  if (connect(probe.get(), address.get(), address.length) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  while (context.Check("connect").ok()) {
    const absl::Duration wait = std::clamp(TimeLeft(context.deadline), absl::Milliseconds(1), kLook);
    pollfd ready{probe.get(), POLLOUT, 0};
    if (poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(wait))) <= 0) continue;
    int error = 0;
    socklen_t size = sizeof(error);
    return getsockopt(probe.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
  }
  return ETIMEDOUT;
}

absl::Status CheckPort(const std::string& address, const RequestContext& context) {
  TC_ASSIGN_OR_RETURN(const HostPort name, ParseHostPort(address));
  const absl::StatusOr<std::vector<SocketAddress>> found = ResolveAddresses(name);
  if (!found.ok()) return found.status();
  int error = ETIMEDOUT;
  for (const SocketAddress& one : *found) {
    error = TryConnect(one, context);
    if (error == 0) return absl::OkStatus();
  }
  TC_RETURN_IF_ERROR(context.Check(absl::StrCat("connect to ", address)));
  if (error == ECONNREFUSED) return NoDaemon(address, "");
  return NoDaemon(address, absl::StrCat(" (", ErrnoStatus(error, "connect to", address).message(), ")"));
}

}  // namespace

absl::Status CheckListener(const std::string& address, const RequestContext& context) {
  return IsUnixAddress(address) ? CheckSocket(address) : CheckPort(address, context);
}

}  // namespace tensorcast::client
