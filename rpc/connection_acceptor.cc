#include "rpc/connection_acceptor.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/posix/unix_socket.h"
#include "base/start_thread.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast::rpc {
namespace {

constexpr int kAcceptsAtOnce = 64;  // before the other listeners have their turn
// Refused connections that may wait until they can be told so, each with one descriptor.
constexpr size_t kMaxRefused = 64;
// What has not made a call for so long after it connected gives way to the next, where there is no room.
constexpr absl::Duration kUnadmittedTime = absl::Seconds(1);
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
// Handshakes that wait for the server, a few milliseconds of a core each: enough to keep every core busy.
constexpr int kMaxUnreadHandshakes = 64;
constexpr absl::Duration kHandshakePause = absl::Milliseconds(5);
// Peers in the kernel's queue. In a long one each would wait until it is about to give up, and all handshakes
// would be for nothing; the kernel of a peer that finds it full tries again after a second.
constexpr int kBacklog = 4096;
constexpr int kHandshakeBacklog = 128;
// A peer that acknowledges nothing for so long is gone; as long as the keepalive's timeout (server.cc).
constexpr unsigned kUserTimeoutMs = 10000;

void SetTcpOptions(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUserTimeoutMs, sizeof(kUserTimeoutMs));
}

// A peer that gave up while it waited in the kernel's queue: its handshake would be for nothing.
bool HasLeft(int socket) {
  pollfd polled{.fd = socket, .events = POLLRDHUP, .revents = 0};
  return poll(&polled, 1, 0) > 0;
}

// For poll: rounded up; -1 for never.
int MillisecondsTo(SteadyTime time) {
  if (time == SteadyTime::InfiniteFuture()) return -1;
  const absl::Duration wait = std::max(TimeLeft(time), absl::ZeroDuration());
  return static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(wait, absl::Milliseconds(1))));
}

}  // namespace

ConnectionAcceptor::ConnectionAcceptor(const Options& options)
    : options_(options), stop_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> ConnectionAcceptor::Listen(const Options& options) {
  std::unique_ptr<ConnectionAcceptor> acceptor(new ConnectionAcceptor(options));
  TC_ASSIGN_OR_RETURN(acceptor->refusing_, RefusingServer::Start(options.credentials.get()));
  if (!acceptor->stop_) return ErrnoStatus(errno, "create", "an eventfd for a server");
  for (const std::string& address : options.listen) {
    TC_ASSIGN_OR_RETURN(
        ListeningSockets opened,
        ListeningSockets::Open(address, options.unix_groups,
                               options.credentials != nullptr ? kHandshakeBacklog : kBacklog));
    acceptor->addresses_.push_back(opened.address());
    acceptor->endpoints_.push_back({.listening = std::move(opened),
                                    .table = std::make_unique<ConnectionTable>(options.max_connections)});
  }
  return acceptor;
}

absl::Status ConnectionAcceptor::Start(Handler handler) {
  handler_ = std::move(handler);
  TC_ASSIGN_OR_RETURN(
      thread_, StartThread(absl::StrCat("serve ", absl::StrJoin(addresses_, ", ")), [this] { Run(); }));
  pthread_setname_np(thread_.native_handle(), "tc-accept");
  return absl::OkStatus();
}

void ConnectionAcceptor::Stop() {
  const uint64_t one = 1;
  // It fails only when the counter is full, and then the thread has been told.
  [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
  // Their tables stay: calls that still run are noted in them.
  for (Endpoint& endpoint : endpoints_) endpoint.listening.Close();
}

double ConnectionAcceptor::UnreadShare() {
  double largest = 0;
  for (const Endpoint& endpoint : endpoints_) largest = std::max(largest, endpoint.table->UnreadShare());
  return largest;
}

void ConnectionAcceptor::Admitted(std::string_view peer) {
  for (const Endpoint& endpoint : endpoints_) endpoint.table->Admitted(peer);
}

// The thread of the acceptor: it waits for new peers, for the end of refused connections, and for the end of
// pauses. Nothing below blocks on a peer. An endpoint that pauses (no descriptor, or too many handshakes) is
// left out of the poll, so its peers wait in the kernel and the other endpoints go on.
void ConnectionAcceptor::Run() {
  std::vector<pollfd> polled;
  while (true) {
    RefuseConnections();
    const SteadyTime now = SteadyNow();
    SteadyTime next = std::min(refusing_->EndOverdue(),
                               to_refuse_.empty() ? SteadyTime::InfiniteFuture() : refusing_->RoomAt());
    polled = {{.fd = stop_.get(), .events = POLLIN, .revents = 0}};
    for (const Endpoint& endpoint : endpoints_) {
      const bool pauses = now < endpoint.resume;
      if (pauses) next = std::min(next, endpoint.resume);
      for (const int listener : endpoint.listening.sockets()) {
        // poll leaves out what has a negative descriptor: new peers wait in the kernel's queue.
        polled.push_back({.fd = pauses ? -1 : listener, .events = POLLIN, .revents = 0});
      }
    }
    const int count = poll(polled.data(), polled.size(), MillisecondsTo(next));
    if (count < 0 && errno != EINTR) {
      LOG_EVERY_N_SEC(ERROR, 10) << ErrnoStatus(errno, "wait for connections at",
                                                absl::StrJoin(addresses_, ", "));
      absl::SleepFor(kAcceptPause);  // the limit of descriptors was lowered below what is polled
    }
    if (count <= 0) continue;
    // Stop has been called.
    if (polled[0].revents != 0) return;
    size_t at = 1;
    for (Endpoint& endpoint : endpoints_) {
      for (const int listener : endpoint.listening.sockets()) {
        if (polled[at++].revents != 0) AcceptAll(endpoint, listener);
      }
    }
  }
}

void ConnectionAcceptor::AcceptAll(Endpoint& endpoint, int listener) {
  const ListeningSockets& listening = endpoint.listening;
  const int accepts = AcceptsAtOnce(endpoint);
  if (accepts <= 0) endpoint.resume = SteadyNow() + kHandshakePause;
  for (int i = 0; i < accepts && endpoint.resume <= SteadyNow(); ++i) {
    UniqueFd connection(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (connection) {
      if (HasLeft(connection.get())) continue;
      Decide(endpoint, listener, std::move(connection));
      continue;
    }
    const int error = errno;
    if (error == EAGAIN || error == EWOULDBLOCK) return;
    // Connections that are being refused give their descriptors back in a moment.
    if (error == EMFILE && refusing_->empty()) {
      // Closed at once and without a word: to say one takes more descriptors.
      const bool was_there = static_cast<bool>(spare_.Accept(listener));
      if (was_there) {
        LOG_EVERY_N_SEC(ERROR, 10) << "accept a connection at " << listening.address()
                                   << ": no descriptor is left; raise the limit of open files";
        otel::metrics::kRpcConnectionsRefused.Add(1, {"descriptors"});
      }
      const bool restored = spare_.Restore();
      if (restored && was_there) continue;
      if (restored) return;  // the kernel gives a descriptor before it looks for a waiting peer
    }
    if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
      LOG_EVERY_N_SEC(ERROR, 10) << ErrnoStatus(error, "accept a connection at", listening.address())
                                 << "; this process tries again";
      // A listener that is ready but cannot be served would keep the thread spinning.
      endpoint.resume = SteadyNow() + kAcceptPause;
      return;
    }
    // Anything else is about the one connection, which is over.
  }
}

int ConnectionAcceptor::AcceptsAtOnce(Endpoint& endpoint) const {
  if (options_.credentials == nullptr || endpoint.listening.is_unix()) return kAcceptsAtOnce;
  return kMaxUnreadHandshakes - endpoint.table->UnreadHandshakes(kMaxUnreadHandshakes);
}

// A connection is either entered in the table and handed to gRPC, or refused with a reason, or (where even
// that takes too many descriptors) closed. It is entered before it is handed over: from then on gRPC may
// close it at any time.
void ConnectionAcceptor::Decide(Endpoint& endpoint, int listener, UniqueFd connection) {
  const ListeningSockets& listening = endpoint.listening;
  if (listening.is_unix()) {
    if (const absl::Status peer = CheckPeer(connection.get(), options_.unix_groups); !peer.ok()) {
      LOG_EVERY_N_SEC(WARNING, 10) << listening.address() << ": refused a connection: " << peer.message();
      // Refused peers wait in a queue of their own until they can be told. Those that are too many are closed
      // without a word.
      if (to_refuse_.size() < kMaxRefused && !IsReserved(connection.get(), DescriptorUser::kNetwork)) {
        to_refuse_.push_back({.listener = listener, .connection = std::move(connection), .reason = peer});
      }
      return;
    }
  } else {
    SetTcpOptions(connection.get());
  }
  if (const absl::Status room = MakeRoom(endpoint, connection.get()); !room.ok()) {
    LOG_EVERY_N_SEC(WARNING, 10) << listening.address() << ": refused a connection: " << room.message();
    refusing_->Refuse(listener, std::move(connection),
                      /*tls=*/options_.credentials != nullptr && !listening.is_unix(), room);
    endpoint.resume =
        refusing_->RoomAt();  // the next ones would be refused, too: they wait until it can be said
    return;
  }
  if (listening.is_unix()) {
    endpoint.table->Add(connection.get());
  } else {
    endpoint.table->AddUnadmitted(connection.get(), TcpPeerOf(connection.get()));
  }
  handler_(listener, std::move(connection));
}

void ConnectionAcceptor::RefuseConnections() {
  while (!to_refuse_.empty() && refusing_->RoomAt() <= SteadyNow()) {
    RefusedConnection& first = to_refuse_.front();
    refusing_->Refuse(first.listener, std::move(first.connection), /*tls=*/false, first.reason);
    to_refuse_.pop_front();
  }
}

absl::Status ConnectionAcceptor::MakeRoom(Endpoint& endpoint, int connection) const {
  const DescriptorUser user =
      endpoint.listening.is_unix() ? DescriptorUserAt(connection) : DescriptorUser::kNetwork;
  absl::Status room;
  if (IsReserved(connection, user)) {
    otel::metrics::kRpcConnectionsRefused.Add(1, {"descriptors"});
    room = absl::UnavailableError(absl::StrCat(
        "accept a connection: the server has no free file descriptor (the limit is ", DescriptorLimit(),
        " open files); close other connections, or raise the server's limit of open files"));
  } else if (endpoint.table->Full()) {
    otel::metrics::kRpcConnectionsRefused.Add(1, {"limit"});
    room = absl::UnavailableError(absl::StrCat(
        "accept a connection: the server already has ", options_.max_connections,
        " connections, its limit; close other connections, or raise max_connections of the server"));
  }
  if (room.ok() || !endpoint.table->EndOldestUnadmitted(kUnadmittedTime)) return room;
  LOG_EVERY_N_SEC(WARNING, 10) << endpoint.listening.address()
                               << ": closed the oldest connection without an admitted call to make room: "
                               << room.message();
  return absl::OkStatus();
}

}  // namespace tensorcast::rpc
