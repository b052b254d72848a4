// Tells the listener of every change of a replica, in order, from a thread of its own, so that no lock of the
// engine is held while the listener runs and a slow listener delays only itself.
//
// Thread-safe. Destroying it delivers what is queued first, but not what the listener itself causes
// meanwhile: the engine goes with it, and a daemon has told the global store by then that it holds nothing.
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

  // Never block on the listener; to be called in the order of the changes.
  void ReplicaChanged(ReplicaInfo replica, std::shared_ptr<const Manifest> manifest) {
    if (listener_ == nullptr) return;
    thread_->Post([listener = listener_, replica = std::move(replica), manifest = std::move(manifest)] {
      listener->OnReplicaChanged(replica, manifest);
    });
  }
  // Returns when the listener was told of every change so far. Not on the listener's thread.
  void Flush() {
    if (listener_ != nullptr) thread_->Run([] {});
  }
  // Calls the listener on this thread, before the callers of the transfer get its result: a caller that then
  // asks about the transfer finds it.
  void TransferEnded(const TransferReport& report) {
    if (listener_ != nullptr) listener_->OnTransferEnded(report);
  }

 private:
  ReplicaListener* const listener_;
  std::optional<TaskLoop> thread_;
};

}  // namespace tensorcast
