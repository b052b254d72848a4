// The grants that this node now uses as a receiver. Heartbeats name these grants, which renews them. When the
// global store revokes a grant, the grant's Cancellation ends the work under the grant. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"

namespace tensorcast::daemon {

class RunningGrants {
 public:
  // Revoke cancels the returned Cancellation; the transfer watches it.
  Cancellation Add(const std::string& grant_id) {
    absl::MutexLock lock(&mutex_);
    return running_[grant_id];
  }

  void Remove(const std::string& grant_id) {
    absl::MutexLock lock(&mutex_);
    running_.erase(grant_id);
  }

  std::vector<std::string> Ids() const {
    absl::MutexLock lock(&mutex_);
    std::vector<std::string> ids;
    for (const auto& [id, cancellation] : running_) ids.push_back(id);
    return ids;
  }

  void Revoke(const std::vector<std::string>& grant_ids) {
    std::vector<Cancellation> revoked;
    {
      absl::MutexLock lock(&mutex_);
      for (const std::string& id : grant_ids) {
        if (auto found = running_.find(id); found != running_.end()) revoked.push_back(found->second);
      }
    }
    for (const Cancellation& cancellation : revoked) cancellation.Cancel();
  }

 private:
  mutable absl::Mutex mutex_;
  std::map<std::string, Cancellation> running_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
