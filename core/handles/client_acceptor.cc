#include "core/handles/client_acceptor.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast {
namespace {

constexpr int kAcceptsAtOnce = 64;

}  // namespace

ClientAcceptor::ClientAcceptor(std::unique_ptr<UnixListener> listener, std::vector<gid_t> allowed_groups,
                               int max_connections, const std::atomic<int>* connections)
    : listener_(std::move(listener)),
      allowed_groups_(std::move(allowed_groups)),
      max_connections_(max_connections),
      connections_(*connections) {}

bool ClientAcceptor::Accept(OnClient on_client) {
  // Not all at once: a flood of clients must not hold up those that are connected.
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    UniqueFd socket(accept4(listener_->fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) {
      // The peer is checked first: a process that may not connect does not learn how busy the daemon is.
      absl::Status verdict = CheckPeer(socket.get(), allowed_groups_);
      if (verdict.ok()) verdict = CheckRoom(socket.get());
      on_client(std::move(socket), verdict);
      continue;
    }
    const int error = errno;
    if (error == EINTR || error == ECONNABORTED) continue;
    if (error == EAGAIN) return true;
    if (error == EMFILE) {
      const bool was_there = RefuseWithTheSpare(on_client);
      const bool restored = spare_.Restore();
      if (restored && was_there) continue;
      if (restored) return true;  // the kernel reserves a descriptor before it looks for a waiting client
    }
    LOG_EVERY_N_SEC(ERROR, 10) << ErrnoStatus(error, "accept a client on", listener_->path());
    return false;
  }
  return true;
}

// With no descriptor left, refuses the client that waits at the listener. False when no client waits.
bool ClientAcceptor::RefuseWithTheSpare(OnClient on_client) {
  UniqueFd socket = spare_.Accept(listener_->fd());
  if (!socket) return false;
  on_client(std::move(socket), OutOfDescriptors());
  return true;
}

absl::Status ClientAcceptor::OutOfDescriptors() const {
  return absl::ResourceExhaustedError(absl::StrCat(
      "connect to ", listener_->path(), ": the daemon has no file descriptor left for another client (limit ",
      DescriptorLimit(), "); detach some clients, or raise the daemon's limit of open files (`ulimit -n`)"));
}

absl::Status ClientAcceptor::CheckRoom(int socket) const {
  if (IsReserved(socket, DescriptorUserAt(socket))) return OutOfDescriptors();
  if (connections_.load() < max_connections_) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("connect to ", listener_->path(),
                                                   ": the daemon already has its max of ", max_connections_,
                                                   " clients; detach some clients, or raise "
                                                   "daemon.max_connections"));
}

}  // namespace tensorcast
