// This node's description for others, and whether it takes new work. Thread-safe.
#pragma once

#include <atomic>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "proto/types.pb.h"

namespace tensorcast::daemon {

class LocalNode {
 public:
  // `description` has everything but the address, which is known only after the server listens.
  explicit LocalNode(v1::Node description)
      : id_(description.node_id()), description_(std::move(description)) {}

  const std::string& id() const { return id_; }

  // The description that the node sends when it registers, with the current draining state.
  v1::Node Describe() const {
    absl::MutexLock lock(&mutex_);
    v1::Node node = description_;
    node.set_draining(draining_);
    return node;
  }
  void SetAddress(const std::string& grpc_address) {
    absl::MutexLock lock(&mutex_);
    description_.set_grpc_address(grpc_address);
  }

  // Refuses new work from now on; running work goes on.
  void Drain() { draining_ = true; }
  bool draining() const { return draining_; }
  // UNAVAILABLE once the daemon is stopping.
  absl::Status CheckAccepting() const {
    if (!draining_) return absl::OkStatus();
    return absl::UnavailableError(
        "this daemon is stopping and accepts no calls; call again when the daemon runs again");
  }

 private:
  const std::string id_;
  std::atomic<bool> draining_ = false;
  mutable absl::Mutex mutex_;
  v1::Node description_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
