// Tells the listener of every change of a replica, in order, on a separate thread. The listener runs without
// a lock of the engine, and a slow listener does not delay the engine.
//
// Thread-safe. The destructor first delivers the queued changes. It drops changes that the listener causes
// during the destruction.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "base/task_loop.h"
#include "core/replicas/callbacks.h"

namespace tensorcast {

class Notifier {
 public:
  // `listener` may be null: then nothing is queued, and there is no thread.
  explicit Notifier(ReplicaListener* listener) : listener_(listener) {
    if (listener_ != nullptr) thread_.emplace();
  }

  // Queues a change; never waits for the listener. Call it in the order of the changes.
  void ReplicaChanged(ReplicaInfo replica, std::shared_ptr<const Manifest> manifest) {
    if (listener_ == nullptr) return;
    thread_->Post([listener = listener_, replica = std::move(replica), manifest = std::move(manifest)] {
      listener->OnReplicaChanged(replica, manifest);
    });
  }
  // Blocks until the listener was told of every change so far. Must not be called on the listener's thread.
  void Flush() {
    if (listener_ != nullptr) thread_->Run([] {});
  }
  // Calls the listener on the calling thread. Call it before the callers of the transfer get the result.
  void TransferEnded(const TransferReport& report) {
    if (listener_ != nullptr) listener_->OnTransferEnded(report);
  }

 private:
  ReplicaListener* const listener_;
  std::optional<TaskLoop> thread_;
};

}  // namespace tensorcast
