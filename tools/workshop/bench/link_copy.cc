#include "tools/workshop/bench/link_copy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/posix/unique_fd.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast::bench {
namespace {

constexpr size_t kBlock = 1 << 20;
// How often a thread that waits looks whether the copy is still wanted.
constexpr timeval kReceiveTimeout = {.tv_sec = 0, .tv_usec = 200'000};

sockaddr_in AddressOf(int node) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, Network::Address(node).c_str(), &address.sin_addr);
  return address;
}

absl::StatusOr<UniqueFd> SocketInside(const Network& network, int node) {
  UniqueFd fd;
  TC_RETURN_IF_ERROR(
      network.Inside(node, [&] { fd = UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }));
  if (!fd) return absl::InternalError(absl::StrCat("node ", node, " got no socket"));
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &kReceiveTimeout, sizeof(kReceiveTimeout));
  return fd;
}

struct Connection {
  UniqueFd sender;
  UniqueFd receiver;
};

absl::StatusOr<Connection> Connect(const Network& network, int from, int to) {
  TC_ASSIGN_OR_RETURN(const UniqueFd listener, SocketInside(network, to));
  sockaddr_in address = AddressOf(to);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof(address);
  if (bind(listener.get(), generic, size) != 0 || listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), generic, &size) != 0) {
    return ErrnoStatus(errno, "listen on", Network::Address(to));
  }
  Connection made;
  TC_ASSIGN_OR_RETURN(made.sender, SocketInside(network, from));
  if (connect(made.sender.get(), generic, size) != 0) {
    return ErrnoStatus(errno, "connect to", Network::Address(to));
  }
  made.receiver = UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!made.receiver) return ErrnoStatus(errno, "accept from", Network::Address(from));
  setsockopt(made.receiver.get(), SOL_SOCKET, SO_RCVTIMEO, &kReceiveTimeout, sizeof(kReceiveTimeout));
  return made;
}

// Ends with the connection: the receiver tells of what went wrong.
void Send(int fd, uint64_t bytes) {
  const std::vector<char> block(kBlock, 'x');
  while (bytes > 0) {
    const ssize_t sent = send(fd, block.data(), std::min<uint64_t>(bytes, kBlock), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return;
    bytes -= static_cast<uint64_t>(sent);
  }
}

absl::Status Receive(const RequestContext& context, int fd, uint64_t bytes) {
  std::vector<char> block(kBlock);
  while (bytes > 0) {
    TC_RETURN_IF_ERROR(context.Check("bench"));
    const ssize_t got = recv(fd, block.data(), kBlock, 0);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return ErrnoStatus(errno, "receive", "a plain copy");
    if (got == 0) {
      return absl::UnavailableError(absl::StrCat("a plain copy ended ", bytes, " bytes too early"));
    }
    bytes -= static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<absl::Duration> CopyOverLink(const RequestContext& context, const Network& network, int from,
                                            int to, uint64_t bytes) {
  TC_ASSIGN_OR_RETURN(const Connection connection, Connect(network, from, to));
  const SteadyTime start = SteadyNow();
  std::thread sender([&] { Send(connection.sender.get(), bytes); });
  const absl::Status received = Receive(context, connection.receiver.get(), bytes);
  const absl::Duration elapsed = SteadyNow() - start;
  // The sender may wait for room in the socket: this ends its wait.
  if (!received.ok()) shutdown(connection.receiver.get(), SHUT_RDWR);
  sender.join();
  TC_RETURN_IF_ERROR(received);
  return elapsed;
}

}  // namespace tensorcast::bench
