// Tells the listener of every change, in order, from a thread of its own, so that no lock of the engine is
// held while the listener runs and a slow listener delays nobody but itself.
//
// Thread-safe. Destroying it delivers what is queued first.
#pragma once

#include <deque>
#include <memory>
#include <thread>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/engine/callbacks.h"

namespace tensorcast {

class Notifier {
 public:
  // `listener` may be null: then nothing is queued.
  explicit Notifier(ReplicaListener* listener);
  ~Notifier();
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  // Never block on the listener; to be called in the order of the changes.
  void ReplicaChanged(ReplicaInfo replica, std::shared_ptr<const Manifest> manifest);
  void TransferEnded(TransferReport report);

 private:
  struct ReplicaChange {
    ReplicaInfo replica;
    std::shared_ptr<const Manifest> manifest;
  };
  using Event = std::variant<ReplicaChange, TransferReport>;

  void Enqueue(Event event);
  void Loop();
  void Deliver(const Event& event);

  ReplicaListener* const listener_;
  absl::Mutex mutex_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tensorcast
