#include "tests/robustness/proxy.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/address.h"

namespace tensorcast {
namespace {

constexpr size_t kStepBytes = 16 << 10;
constexpr int kDelayMs = 1;
constexpr int kTrickleMs = 2000;

using Kind = ProxyFault::Kind;

void DoNotCollect(int socket) {
  const int on = 1;
  PCHECK(setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
}

// Not set when it failed.
UniqueFd Connect(const std::string& address) {
  const absl::StatusOr<HostPort> target = ParseHostPort(address);
  CHECK_OK(target.status());
  const absl::StatusOr<SocketAddress> resolved = ResolveAddress(*target);
  CHECK_OK(resolved.status());
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return connect(fd.get(), resolved->get(), resolved->length) == 0 ? std::move(fd) : UniqueFd();
}

// False when the other end is gone.
bool SendAll(int socket, std::string_view bytes, size_t at_a_time) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket, bytes.data(), std::min(at_a_time, bytes.size()), MSG_NOSIGNAL);
    if (sent < 0) return false;
    bytes.remove_prefix(sent);
  }
  return true;
}

}  // namespace

// One connection of a receiver, and the one that was made to the source for it.
// Its thread reads from whichever end has bytes and passes them on before it reads again. So a receiver that
// does not read stops the source, as on a direct connection.
class Proxy::Connection {
 public:
  Connection(Proxy* proxy, UniqueFd receiver, UniqueFd source, ProxyFault fault)
      : proxy_(*proxy), receiver_(std::move(receiver)), source_(std::move(source)), fault_(std::move(fault)) {
    DoNotCollect(receiver_.get());
    DoNotCollect(source_.get());
    // These faults affect a connection from its beginning. The others count as done at the byte at which they
    // begin.
    switch (fault_.kind) {
      case Kind::kSingleBytes:
        at_a_time_ = 1;
        [[fallthrough]];
      case Kind::kDelay:
        proxy_.Happened();
        break;
      default:
        break;
    }
  }

  // Until either end, or the proxy, ends it.
  void Run() {
    pollfd ends[] = {{.fd = receiver_.get(), .events = POLLIN, .revents = 0},
                     {.fd = source_.get(), .events = POLLIN, .revents = 0},
                     {.fd = proxy_.stop_.get(), .events = POLLIN, .revents = 0}};
    for (;;) {
      if (poll(ends, std::size(ends), -1) < 0 || ends[2].revents != 0) return;
      if (ends[0].revents != 0 && !HandOn(receiver_.get(), source_.get(), /*of_source=*/false)) return;
      if (ends[1].revents != 0 && !HandOn(source_.get(), receiver_.get(), /*of_source=*/true)) return;
    }
  }

 private:
  // False: the connection is to be closed. Only what the source says is spoilt; requests pass as they are.
  bool HandOn(int from, int to, bool of_source) {
    std::string bytes(kStepBytes, '\0');
    const ssize_t got = recv(from, bytes.data(), bytes.size(), 0);
    if (got <= 0) return false;
    bytes.resize(got);
    // Bytes that were read before a cut wait here, and arrive after it.
    if (!proxy_.AwaitPassage()) return false;
    if (!of_source) return SendAll(to, bytes, at_a_time_);
    const bool on = Spoil(bytes);
    if (fault_.kind == Kind::kTrickle && happened_) return Trickle(to, bytes);
    // A reset drops what the receiver has not read, and then it would not see the middle of a frame.
    return SendAll(to, bytes, at_a_time_) && on;
  }

  // Until the receiver is gone, or the proxy ends it.
  bool Trickle(int to, std::string_view bytes) {
    pollfd stop = {.fd = proxy_.stop_.get(), .events = POLLIN, .revents = 0};
    for (; !bytes.empty(); bytes.remove_prefix(1)) {
      if (poll(&stop, 1, kTrickleMs) != 0 || !SendAll(to, bytes.substr(0, 1), 1)) return false;
    }
    return true;
  }

  // Makes of what the source said what the receiver hears; false when that is all it will.
  bool Spoil(std::string& bytes) {
    const uint64_t begin = said_;
    said_ += bytes.size();
    switch (fault_.kind) {
      case Kind::kNone:
      case Kind::kSingleBytes:
        return true;
      case Kind::kDelay: {
        pollfd stop = {.fd = proxy_.stop_.get(), .events = POLLIN, .revents = 0};
        (void)poll(&stop, 1, kDelayMs);
        return true;
      }
      default:
        break;
    }
    if (said_ <= fault_.after) return true;
    const size_t at = fault_.after > begin ? fault_.after - begin : 0;
    if (!std::exchange(happened_, true)) proxy_.Happened();
    switch (fault_.kind) {
      case Kind::kSwallow:
        bytes.resize(at);
        return true;
      case Kind::kTrickle:
        return true;
      case Kind::kEnd:
        bytes.resize(at);
        return false;
      case Kind::kReset: {
        bytes.resize(at);
        const linger at_once = {.l_onoff = 1, .l_linger = 0};
        PCHECK(setsockopt(receiver_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)) == 0);
        return false;
      }
      case Kind::kFlip:
        bytes[at] = static_cast<char>(bytes[at] ^ 1);
        break;
      default:
        bytes.replace(at, std::min(bytes.size() - at, fault_.bytes.size()), fault_.bytes);
    }
    // A flip and a replacement happen once, and what follows passes unchanged. A swallow and a trickle last
    // as long as the connection.
    fault_.kind = Kind::kNone;
    return true;
  }

  Proxy& proxy_;
  const UniqueFd receiver_;
  const UniqueFd source_;
  ProxyFault fault_;
  size_t at_a_time_ = kStepBytes;
  uint64_t said_ = 0;  // by the source
  bool happened_ = false;
};

Proxy::Proxy() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), stop_(eventfd(0, EFD_CLOEXEC)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  PCHECK(stop_ && bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
         listen(listener_.get(), SOMAXCONN) == 0 &&
         getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
  address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  accepting_ = std::thread([this] { Accept(); });
}

Proxy::~Proxy() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  const uint64_t one = 1;
  PCHECK(write(stop_.get(), &one, sizeof(one)) == sizeof(one));
  accepting_.join();
  for (std::thread& connection : connections_) connection.join();
}

void Proxy::ForwardTo(const std::string& address) {
  absl::MutexLock lock(&mutex_);
  target_ = address;
}

void Proxy::Cut() {
  absl::MutexLock lock(&mutex_);
  cut_ = true;
}

void Proxy::Heal() {
  absl::MutexLock lock(&mutex_);
  cut_ = false;
}

bool Proxy::AwaitPassage() {
  absl::MutexLock lock(&mutex_);
  const auto may_go_on = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopping_ || (!cut_ && !target_.empty());
  };
  mutex_.Await(absl::Condition(&may_go_on));
  return !stopping_;
}

void Proxy::Set(const ProxyFault& fault) {
  absl::MutexLock lock(&mutex_);
  fault_ = fault;
  taken_ = 0;
  happened_ = 0;
}

int Proxy::faults_done() const {
  absl::MutexLock lock(&mutex_);
  return happened_;
}

// The first `connections` connections have the fault; those after them are sound.
ProxyFault Proxy::TakeFault() {
  absl::MutexLock lock(&mutex_);
  if (taken_ == fault_.connections) return {};
  ++taken_;
  return fault_;
}

void Proxy::Happened() {
  absl::MutexLock lock(&mutex_);
  ++happened_;
}

// A receiver is accepted while the proxy is cut, and waits: so a cut looks like a network that drops
// packets.
void Proxy::Accept() {
  for (;;) {
    pollfd waiting[] = {{.fd = listener_.get(), .events = POLLIN, .revents = 0},
                        {.fd = stop_.get(), .events = POLLIN, .revents = 0}};
    if (poll(waiting, std::size(waiting), -1) < 0 || waiting[1].revents != 0) return;
    UniqueFd receiver(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!receiver) continue;
    if (!AwaitPassage()) return;
    UniqueFd source = Connect(Target());
    if (!source) continue;
    connections_.emplace_back(
        [connection = std::make_unique<Connection>(this, std::move(receiver), std::move(source),
                                                   TakeFault())] { connection->Run(); });
  }
}

}  // namespace tensorcast
