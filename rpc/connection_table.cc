#include "rpc/connection_table.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/posix/unique_fd.h"
#include "base/steady_time.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast::rpc {
namespace {

constexpr size_t kSample = 64;     // connections that are looked at for unread bytes
constexpr size_t kMinSample = 32;  // that say something
// Of the newest unadmitted connections so many are looked at, a call to the kernel each.
constexpr int kHandshakesLookedAt = 512;

constexpr int kSweepRest = 20;  // at most one part in so many of the time goes into sweeps

// 0, 0 for what is not open. Not by SO_COOKIE, which the kernel may refuse.
// A closed descriptor's number is given to the next file. The inode tells whether the number is still this
// socket.
std::pair<dev_t, ino_t> InodeOf(int socket) {
  struct stat found{};
  return fstat(socket, &found) == 0 ? std::pair(found.st_dev, found.st_ino) : std::pair<dev_t, ino_t>();
}

// The tables of the process's servers, and their gauge.
class AllTables {
 public:
  static AllTables& Get() {
    static AllTables* const all = new AllTables;
    return *all;
  }
  void Add(ConnectionTable* table) {
    absl::MutexLock lock(&mutex_);
    tables_.insert(table);
  }
  void Remove(ConnectionTable* table) {
    absl::MutexLock lock(&mutex_);
    tables_.erase(table);
  }

 private:
  AllTables()
      : gauge_(otel::metrics::kRpcConnections.Observe([this](auto& observer) {
          int count = 0;
          absl::MutexLock lock(&mutex_);
          for (ConnectionTable* table : tables_) count += table->Count();
          if (!tables_.empty()) observer.Observe(count);
        })) {}

  absl::Mutex mutex_;
  std::set<ConnectionTable*> tables_ ABSL_GUARDED_BY(mutex_);
  const otel::GaugeRegistration gauge_;
};

}  // namespace

ConnectionTable::ConnectionTable(int max_connections) : max_connections_(max_connections) {
  AllTables::Get().Add(this);
}

ConnectionTable::~ConnectionTable() { AllTables::Get().Remove(this); }

// gRPC does not tell when a connection ends, so those that were counted are looked at again, but only when
// the table seems full, and not so often that looking is all that is done.
bool ConnectionTable::Full() {
  absl::MutexLock lock(&mutex_);
  const auto full = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return static_cast<int>(connections_.size()) >= max_connections_;
  };
  const SteadyTime start = SteadyNow();
  if (!full() || start < next_sweep_) return full();
  Sweep();
  if (full()) {
    const SteadyTime end = SteadyNow();
    next_sweep_ = end + kSweepRest * (end - start);
  }
  return full();
}

void ConnectionTable::Add(int socket) {
  const auto inode = InodeOf(socket);
  absl::MutexLock lock(&mutex_);
  connections_.push_back({socket, inode});
}

void ConnectionTable::AddUnadmitted(int socket, std::string peer) {
  const Connection connection{socket, InodeOf(socket)};
  absl::MutexLock lock(&mutex_);
  connections_.push_back(connection);
  const uint64_t id = next_unadmitted_++;
  strange_peers_.insert_or_assign(peer, id);
  unadmitted_.push_back({id, connection, std::move(peer), SteadyNow()});
}

// From the newest on. Bytes that lie unread on such a connection are a handshake that gRPC has not come to.
int ConnectionTable::UnreadHandshakes(int max) {
  absl::MutexLock lock(&mutex_);
  int unread = 0;
  int looked_at = 0;
  for (auto one = unadmitted_.rbegin();
       one != unadmitted_.rend() && unread < max && looked_at < kHandshakesLookedAt; ++one) {
    const auto found = strange_peers_.find(one->peer);
    if (found == strange_peers_.end() || found->second != one->id) continue;  // it has made a call
    ++looked_at;
    int bytes = 0;
    if (InodeOf(one->connection.socket) != one->connection.inode) continue;
    if (ioctl(one->connection.socket, FIONREAD, &bytes) == 0 && bytes > 0) ++unread;
  }
  return unread;
}

// Each admitted call comes here. A peer that is known costs the shared lock alone.
void ConnectionTable::Admitted(std::string_view peer) {
  {
    absl::ReaderMutexLock lock(&mutex_);
    if (!strange_peers_.contains(peer)) return;
  }
  absl::MutexLock lock(&mutex_);
  strange_peers_.erase(peer);
}

bool ConnectionTable::EndOldestUnadmitted(absl::Duration age) {
  absl::MutexLock lock(&mutex_);
  const SteadyTime newest = SteadyNow() - age;
  while (!unadmitted_.empty() && unadmitted_.front().since <= newest) {
    const UnadmittedConnection oldest = std::move(unadmitted_.front());
    unadmitted_.pop_front();
    if (!Forget(oldest)) continue;  // it has made a call
    // A descriptor of ours to it: gRPC may close its own, and the number be another's, at any moment.
    const UniqueFd ours(fcntl(oldest.connection.socket, F_DUPFD_CLOEXEC, 0));
    if (!ours || InodeOf(ours.get()) != oldest.connection.inode) continue;  // it has left
    shutdown(ours.get(), SHUT_RDWR);
    return true;
  }
  return false;
}

int ConnectionTable::Count() {
  absl::MutexLock lock(&mutex_);
  Sweep();
  return static_cast<int>(connections_.size());
}

double ConnectionTable::UnreadShare() {
  absl::MutexLock lock(&mutex_);
  size_t open = 0;
  size_t unread = 0;
  // Others each time, from all over the table: connections that came together are often served together.
  const size_t step = std::max<size_t>(connections_.size() / kSample, 1);
  for (size_t i = 0; i < kSample && i < connections_.size(); ++i) {
    const Connection& one = connections_[(next_sampled_ + i * step) % connections_.size()];
    int bytes = 0;
    if (InodeOf(one.socket) != one.inode) continue;
    ++open;
    if (ioctl(one.socket, FIONREAD, &bytes) == 0 && bytes > 0) ++unread;
  }
  ++next_sampled_;
  return open < kMinSample ? 0 : static_cast<double>(unread) / static_cast<double>(open);
}

// Besides connections that are gone, it drops entries that are void: their peer has made a call, or a later
// connection from its address has taken its place in strange_peers_.
void ConnectionTable::Sweep() {
  const auto is_gone = [](const Connection& one) { return InodeOf(one.socket) != one.inode; };
  std::erase_if(connections_, is_gone);
  std::erase_if(unadmitted_, [&](const UnadmittedConnection& one) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (is_gone(one.connection)) Forget(one);
    const auto found = strange_peers_.find(one.peer);
    return found == strange_peers_.end() || found->second != one.id;
  });
}

bool ConnectionTable::Forget(const UnadmittedConnection& one) {
  const auto found = strange_peers_.find(one.peer);
  if (found == strange_peers_.end() || found->second != one.id) return false;
  strange_peers_.erase(found);
  return true;
}

// As gRPC writes the peer of a call, with brackets and the scope's sign percent-encoded: the two are
// compared as text.
std::string TcpPeerOf(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "";
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &ipv4.sin_addr, text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", ntohs(ipv4.sin_port));
  }
  if (address.ss_family != AF_INET6) return "";
  const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(address);
  const auto port = ntohs(ipv6.sin6_port);
  if (IN6_IS_ADDR_V4MAPPED(&ipv6.sin6_addr)) {
    inet_ntop(AF_INET, &ipv6.sin6_addr.s6_addr[12], text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", port);
  }
  inet_ntop(AF_INET6, &ipv6.sin6_addr, text, sizeof(text));
  const std::string scope = ipv6.sin6_scope_id == 0 ? "" : absl::StrCat("%25", ipv6.sin6_scope_id);
  return absl::StrCat("ipv6:%5B", text, scope, "%5D:", port);
}

}  // namespace tensorcast::rpc
