#include "rpc/connection_table.h"

#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "base/steady_time.h"
#include "otel/api/metrics_catalogue.h"

namespace tensorcast::rpc {
namespace {

constexpr size_t kSample = 64;     // connections that are looked at for unread bytes
constexpr size_t kMinSample = 32;  // that say something

constexpr int kSweepRest = 20;  // at most one part in so many of the time goes into sweeps

// 0, 0 for what is not open. Not by SO_COOKIE, which the kernel may refuse.
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

void ConnectionTable::Sweep() {
  std::erase_if(connections_, [](const Connection& one) { return InodeOf(one.socket) != one.inode; });
}

}  // namespace tensorcast::rpc
