#include "daemon/global_store_link/replica_feed.h"

#include <algorithm>
#include <utility>

#include "otel/api/span.h"

namespace tensorcast::daemon {

namespace {

// Whether another node can gain from the report of this change, and no other call tells the global store. A
// change that is not urgent goes with the next one, or with the next heartbeat. These are not:
// - A replica without memory: no node can read it.
// - A replica that begins to fill: the request for sources names it (RequestReplicaTransport). One that fills
//   from what this node has makes no request, and is soon ready. A partial replica that fills again is listed
//   in another state, which only a report changes.
// - A difference that is ready: its publication, or the end of its grant, said so.
bool IsUrgent(const ReplicaInfo& replica, const Manifest* manifest) {
  switch (replica.state) {
    case ReplicaState::kAllocating:
      return false;
    case ReplicaState::kFilling:
      return replica.chunks_present > 0;
    case ReplicaState::kReady:
      return manifest == nullptr || manifest->kind() != ArtifactKind::kDifference;
    default:
      return true;
  }
}

}  // namespace

void ReplicaFeed::SetWake(std::function<void()> wake) {
  absl::MutexLock lock(&mutex_);
  wake_ = std::move(wake);
}

void ReplicaFeed::OnReplicaChanged(const ReplicaInfo& replica,
                                   const std::shared_ptr<const Manifest>& manifest) {
  Add(replica, IsUrgent(replica, manifest.get()));
}

void ReplicaFeed::OnTransferEnded(const TransferReport& report) {
  if (transfers_) transfers_(report);
}

void ReplicaFeed::Touch(const ReplicaInfo& replica) { Add(replica, /*urgent=*/true); }

void ReplicaFeed::Add(const ReplicaInfo& replica, bool urgent) {
  // A first ingest has no artifact id yet, and no other node can want such a replica.
  if (replica.artifact_id.empty()) return;
  std::function<void()> wake;
  {
    absl::MutexLock lock(&mutex_);
    ++changes_;
    // A replica keeps its place in the queue when it changes again; only its state is replaced.
    if (latest_.insert_or_assign(replica.id, ReplicaChange{replica, otel::CurrentContext()}).second) {
      order_.push_back(replica.id);
    }
    // What is dropped is not lost: the link sends the inventory instead, which holds all of it.
    if (order_.size() > capacity_) {
      order_.clear();
      latest_.clear();
      overflowed_ = true;
    }
    wake = wake_;
  }
  // Without the lock: the link takes its own mutex in it.
  if (wake && urgent) wake();
}

std::vector<ReplicaChange> ReplicaFeed::Take(size_t max) {
  absl::MutexLock lock(&mutex_);
  std::vector<ReplicaChange> taken;
  taken.reserve(std::min(max, order_.size()));
  while (!order_.empty() && taken.size() < max) {
    auto entry = latest_.extract(order_.front());
    order_.pop_front();
    taken.push_back(std::move(entry.mapped()));
  }
  return taken;
}

// Before a snapshot for an inventory, which also makes up for an overflow until now.
void ReplicaFeed::Clear() {
  absl::MutexLock lock(&mutex_);
  order_.clear();
  latest_.clear();
  overflowed_ = false;
}

bool ReplicaFeed::empty() const {
  absl::MutexLock lock(&mutex_);
  return order_.empty();
}

uint64_t ReplicaFeed::changes() const {
  absl::MutexLock lock(&mutex_);
  return changes_;
}

bool ReplicaFeed::TakeOverflow() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(overflowed_, false);
}

}  // namespace tensorcast::daemon
