#include "cli/dashboard/token_socket.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/posix/socket_folders.h"
#include "base/posix/state_files.h"
#include "base/start_thread.h"
#include "base/status.h"

namespace tensorcast::dashboard {
namespace {

// Neither side waits for longer for the other one.
constexpr timeval kPatience{.tv_sec = 2, .tv_usec = 0};

}  // namespace

std::string TokenSocketPath(uint16_t port) {
  return absl::StrCat(DefaultSocketFolder(), "/dashboard/", port, ".sock");
}

absl::StatusOr<std::unique_ptr<TokenSocket>> TokenSocket::Listen(const std::string& path,
                                                                 std::function<std::string()> new_address) {
  TC_RETURN_IF_ERROR(MakePrivateFolder(path.substr(0, path.rfind('/')), path.substr(path.rfind('/') + 1)));
  TC_ASSIGN_OR_RETURN(auto listener, UnixListener::Listen(path, {}));
  // Wakes the thread at the end: a poll does not notice that its descriptor is closed.
  UniqueFd stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop) return ErrnoStatus(errno, "create", "an eventfd");
  std::unique_ptr<TokenSocket> socket(
      new TokenSocket(std::move(listener), std::move(stop), std::move(new_address)));
  TC_ASSIGN_OR_RETURN(socket->thread_,
                      StartThread(absl::StrCat("serve ", path), [own = socket.get()] { own->Serve(); }));
  return socket;
}

TokenSocket::TokenSocket(std::unique_ptr<UnixListener> listener, UniqueFd stop,
                         std::function<std::string()> new_address)
    : listener_(std::move(listener)), stop_(std::move(stop)), new_address_(std::move(new_address)) {}

TokenSocket::~TokenSocket() {
  eventfd_write(stop_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

// The protocol: the peer connects and sends nothing; this thread writes one address and closes. Peers are
// answered one after the other, since an address fits in the socket's buffer. kPatience bounds the wait for
// a full buffer.
void TokenSocket::Serve() {
  while (true) {
    pollfd polled[] = {{.fd = listener_->fd(), .events = POLLIN}, {.fd = stop_.get(), .events = POLLIN}};
    poll(polled, 2, -1);
    if (polled[1].revents != 0) return;
    const UniqueFd peer(accept4(listener_->fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!peer) {
      // Where no descriptor is free the peer stays in the backlog, and the first poll would return at once.
      poll(&polled[1], 1, 100);
      continue;
    }
    // The file's mode keeps other users out; the kernel's word on the peer holds also where a mode was
    // changed.
    if (!CheckPeer(peer.get(), {}).ok()) continue;
    const std::string address = new_address_();
    setsockopt(peer.get(), SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
    send(peer.get(), address.data(), address.size(), MSG_NOSIGNAL);
  }
}

absl::StatusOr<std::string> AskForAddress(const std::string& path) {
  TC_ASSIGN_OR_RETURN(const sockaddr_un name, UnixAddress(path));
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return ErrnoStatus(errno, "create", "a unix socket");
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    return absl::UnavailableError(
        absl::StrCat("get a token from ", path,
                     ": no dashboard of this user listens there; start a dashboard with `tensorcast "
                     "dashboard`, or name the address of a running dashboard with --listen"));
  }
  // Root's folder of sockets may belong to the user of the system service, and another socket may be here.
  TC_RETURN_IF_ERROR(Annotate(CheckPeer(socket.get(), {}), absl::StrCat("get a token from ", path)));
  std::string address;
  char buffer[512];
  ssize_t got = 0;
  // The dashboard closes the connection behind the address.
  while ((got = recv(socket.get(), buffer, sizeof(buffer), 0)) > 0) address.append(buffer, got);
  if (address.empty()) {
    return absl::UnavailableError(
        absl::StrCat("get a token from ", path, ": the dashboard gave no answer; try again"));
  }
  return address;
}

}  // namespace tensorcast::dashboard
