#include "rpc/listening_sockets.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/address.h"
#include "base/status.h"

namespace tensorcast::rpc {
namespace {

uint16_t BoundPort(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  return getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) == 0 ? PortOf(address) : 0;
}

void SetPort(sockaddr_storage& address, uint16_t port) {
  uint16_t& field = address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                                  : reinterpret_cast<sockaddr_in&>(address).sin_port;
  field = htons(port);
}

// An invalid descriptor where it cannot; errno says why.
UniqueFd ListenOn(const SocketAddress& one, bool ipv6_only, int backlog) {
  const sa_family_t family = one.storage.ss_family;
  UniqueFd fd(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return fd;
  // A server that is restarted takes its port again, whatever connections of the one before are in TIME_WAIT.
  const int on = 1;
  const int only = ipv6_only ? 1 : 0;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (family == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only));
  if (bind(fd.get(), one.get(), one.length) != 0 || listen(fd.get(), backlog) != 0) return UniqueFd();
  return fd;
}

absl::Status CannotListen(std::string_view address, int error) {
  if (error == EADDRINUSE) {
    return absl::UnavailableError(
        absl::StrCat("listen on ", address,
                     ": the port is in use; stop the process that listens there, or choose another port"));
  }
  if (error == EADDRNOTAVAIL) {
    return absl::UnavailableError(absl::StrCat(
        "listen on ", address, ": this host does not have the address; choose an address of this host"));
  }
  return ErrnoStatus(error, "listen on", address);
}

}  // namespace

absl::StatusOr<ListeningSockets> ListeningSockets::Open(const std::string& address,
                                                        const std::vector<gid_t>& unix_groups, int backlog) {
  ListeningSockets opened;
  std::string_view path = address;
  if (!absl::ConsumePrefix(&path, "unix:")) {
    TC_RETURN_IF_ERROR(opened.OpenTcp(address, backlog));
    return opened;
  }
  absl::ConsumePrefix(&path, "//");  // unix:///path is the same
  // Its errors name the path.
  TC_ASSIGN_OR_RETURN(opened.unix_, UnixListener::Listen(std::string(path), unix_groups));
  opened.sockets_ = {opened.unix_->fd()};
  opened.address_ = address;
  return opened;
}

void ListeningSockets::Close() {
  sockets_.clear();
  tcp_.clear();
  unix_.reset();
}

// One socket for each address that the name stands for, all on one port.
absl::Status ListeningSockets::OpenTcp(const std::string& address, int backlog) {
  const std::string what = absl::StrCat("listen on ", address);
  const absl::StatusOr<HostPort> asked = ParseHostPort(address);
  if (!asked.ok()) return Annotate(asked.status(), what);
  absl::StatusOr<std::vector<SocketAddress>> all = ResolveAddresses(*asked);
  if (!all.ok()) return Annotate(all.status(), what);
  // Where a name stands for addresses of both families, each has a socket of its own.
  const bool ipv6_only =
      std::ranges::any_of(*all, [](const auto& one) { return one.storage.ss_family == AF_INET; });
  uint16_t port = asked->port;
  int failed = 0;
  for (SocketAddress& one : *all) {
    SetPort(one.storage, port);  // the one that was picked for the first
    UniqueFd fd = ListenOn(one, ipv6_only, backlog);
    if (!fd) {
      failed = errno;
      // A host without IPv6 still resolves names to its addresses.
      if (failed == EADDRNOTAVAIL || failed == EAFNOSUPPORT) continue;
      return CannotListen(address, failed);
    }
    if (port == 0) port = BoundPort(fd.get());
    sockets_.push_back(fd.get());
    tcp_.push_back(std::move(fd));
  }
  // One address that works is enough: a name may stand for families that this host does not have.
  if (tcp_.empty()) return CannotListen(address, failed);
  address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
  return absl::OkStatus();
}

}  // namespace tensorcast::rpc
