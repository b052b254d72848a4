#include "client/daemon_address.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/address.h"
#include "base/posix/socket_folders.h"
#include "base/posix/state_files.h"
#include "base/posix/unique_fd.h"
#include "base/posix/unix_socket.h"
#include "base/request_context.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast::client {
namespace {

// The operator's socket for the daemon's own user, else the client's.
std::string SocketForThisUser(const std::string& folder) {
  std::string operators = absl::StrCat(folder, "/", kOperatorSocket);
  struct stat found{};
  const bool own = stat(operators.c_str(), &found) == 0 && found.st_uid == geteuid();
  return own ? operators : absl::StrCat(folder, "/", kClientSocket);
}

// How soon a cancellation is seen.
constexpr absl::Duration kLook = absl::Milliseconds(50);

absl::Status NoDaemon(const std::string& address) {
  return absl::UnavailableError(absl::StrCat(
      "connect to ", address,
      ": no daemon listens there; start a daemon with \"tensorcast daemon\", or give the address "
      "of a running daemon"));
}

// By a connection of its own: its errno tells apart what gRPC reports as one UNAVAILABLE.
absl::Status CheckSocket(const std::string& address) {
  const std::string path = SocketPath(address);
  TC_ASSIGN_OR_RETURN(const sockaddr_un name, UnixAddress(path));
  // Not blocking: a full backlog would block it, although that proves a listener.
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
      return NoDaemon(address);
    case EACCES:
      return absl::PermissionDeniedError(absl::StrCat(
          "connect to ", path, ": user ", geteuid(),
          " may not use this socket; run this program as the daemon's user (daemon.sock gives the "
          "operator role), or as a member of a group in daemon.handle_groups (client.sock gives the "
          "client role)"));
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
  // A cancellation has no descriptor to wait for, so the wait is cut into short ones.
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
  // A name may stand for several addresses, of IPv6 and IPv4. One that answers is enough; where none does,
  // the last error is told.
  int error = ETIMEDOUT;
  for (const SocketAddress& one : *found) {
    error = TryConnect(one, context);
    if (error == 0) return absl::OkStatus();
  }
  TC_RETURN_IF_ERROR(context.Check(absl::StrCat("connect to ", address)));
  if (error == ECONNREFUSED) return NoDaemon(address);
  // Anything else, such as a host without a route, does not say whether a daemon listens there.
  return absl::UnavailableError(absl::StrCat(ErrnoStatus(error, "connect to", address).message(),
                                             "; check the address, and the network to that host"));
}

}  // namespace

std::string ToDaemonAddress(std::string_view named) {
  std::filesystem::path path;
  if (std::string_view in_home = named; absl::ConsumePrefix(&in_home, "~/")) {
    path = std::filesystem::path(ReadEnvironment("HOME")) / in_home;
  } else if (absl::StartsWith(named, "/") || absl::StartsWith(named, "./") ||
             absl::StartsWith(named, "../")) {
    path = named;
  } else {
    return std::string(named);
  }
  // Absolute, since the working directory may be another one when the address is used again.
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return absl::StrCat("unix:", (error ? path : absolute).lexically_normal().string());
}

// The first of the folders in which a daemon listens. A socket that refuses this user is the error only
// where no other one listens.
absl::StatusOr<std::string> FindDaemonIn(std::span<const std::string> folders) {
  std::vector<std::string> tried;
  absl::Status refused;
  for (const std::string& folder : folders) {
    std::string socket = SocketForThisUser(folder);
    std::string address = absl::StrCat("unix:", socket);
    const absl::Status listens = CheckListener(address, RequestContext::Background());
    if (listens.ok()) return address;
    if (absl::IsPermissionDenied(listens)) refused.Update(listens);
    tried.push_back(std::move(socket));
  }
  if (!refused.ok()) return refused;
  return absl::UnavailableError(absl::StrCat(
      "find the daemon of this host: no daemon listens at ", absl::StrJoin(tried, " or "),
      "; start a daemon with \"tensorcast daemon\", or name a running daemon with ", kDaemonVariable));
}

// The order is the same in C++, Python and the CLI: what the caller names, the environment, the default
// folders. A name that is given is never replaced by another daemon that happens to run.
absl::StatusOr<std::string> FindDaemon(std::string_view named) {
  if (!named.empty()) return ToDaemonAddress(named);
  if (const std::string of_environment = ReadEnvironment(kDaemonVariable); !of_environment.empty()) {
    return ToDaemonAddress(of_environment);
  }
  return FindDaemonIn(SocketFolders());
}

absl::Status CheckListener(const std::string& address, const RequestContext& context) {
  return IsUnixAddress(address) ? CheckSocket(address) : CheckPort(address, context);
}

}  // namespace tensorcast::client
