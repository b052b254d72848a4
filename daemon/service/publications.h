// Artifacts that this node is about to publish, and those published since the last heartbeat was filled in:
// the global store's word that such an artifact was deleted is older than the new one, and is not followed.
// (It comes again with the next heartbeat if it is still true.) Thread-safe; must outlive its holds.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tensorcast::daemon {

class Publications {
 public:
  // From here to its end the artifact is being stored and published.
  class Hold {
   public:
    Hold(Publications* publications, std::string_view artifact_id)
        : publications_(*publications), artifact_id_(artifact_id) {
      absl::MutexLock lock(&publications_.mutex_);
      ++publications_.running_[artifact_id_];
    }
    ~Hold() {
      absl::MutexLock lock(&publications_.mutex_);
      const auto running = publications_.running_.find(artifact_id_);
      if (--running->second == 0) publications_.running_.erase(running);
      publications_.recent_.insert(artifact_id_);
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    Publications& publications_;
    const std::string artifact_id_;
  };

  // A heartbeat is about to be sent: its answer knows all that was published until now.
  void BeginHeartbeat() {
    absl::MutexLock lock(&mutex_);
    recent_.clear();
  }
  // Whether the answer to that heartbeat may be wrong about this artifact's deletion.
  bool Protects(const std::string& artifact_id) const {
    absl::MutexLock lock(&mutex_);
    return running_.contains(artifact_id) || recent_.contains(artifact_id);
  }

 private:
  mutable absl::Mutex mutex_;
  std::map<std::string, int> running_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> recent_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
