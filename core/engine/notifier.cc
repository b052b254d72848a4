#include "core/engine/notifier.h"

#include <utility>

namespace tensorcast {

Notifier::Notifier(ReplicaListener* listener) : listener_(listener) {
  if (listener_ != nullptr) thread_ = std::thread([this] { Loop(); });
}

Notifier::~Notifier() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void Notifier::ReplicaChanged(ReplicaInfo replica, std::shared_ptr<const Manifest> manifest) {
  Enqueue(ReplicaChange{std::move(replica), std::move(manifest)});
}

void Notifier::TransferEnded(TransferReport report) { Enqueue(std::move(report)); }

void Notifier::Enqueue(Event event) {
  if (listener_ == nullptr) return;
  absl::MutexLock lock(&mutex_);
  events_.push_back(std::move(event));
}

void Notifier::Loop() {
  auto has_work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !events_.empty(); };
  while (true) {
    std::deque<Event> batch;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_work));
      if (events_.empty()) return;
      batch.swap(events_);
    }
    for (const Event& event : batch) Deliver(event);
  }
}

void Notifier::Deliver(const Event& event) {
  if (const auto* change = std::get_if<ReplicaChange>(&event)) {
    listener_->OnReplicaChanged(change->replica, change->manifest);
  } else {
    listener_->OnTransferEnded(std::get<TransferReport>(event));
  }
}

}  // namespace tensorcast
