// The puts of this node, by the artifact that they store, from its first replica to its publication or
// failure.
//
// What a put made is dropped when it fails; unless another put of the same content took it for its own
// meanwhile: then by the last of them, and only if none was published.
//
// An artifact that is about to be published, or was since the last heartbeat was filled in, is protected from
// the global store's word that it was deleted: that is older than the new one, and is not followed. (It comes
// again with the next heartbeat if it is still true.)
//
// Thread-safe; must outlive its holds.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tensorcast::daemon {

class Publications {
 public:
  using Drop = std::function<void(const std::string& replica_id)>;

  // One put of the artifact, until it was published or failed.
  class Hold {
   public:
    // `drop` may be called at the end, without a lock.
    Hold(Publications* publications, std::string_view artifact_id, Drop drop)
        : publications_(*publications), artifact_id_(artifact_id), drop_(std::move(drop)) {
      absl::MutexLock lock(&publications_.mutex_);
      ++publications_.running_[artifact_id_].puts;
    }
    ~Hold() {
      for (const std::string& replica_id : publications_.Leave(artifact_id_)) drop_(replica_id);
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

    // This replica is there because of this put.
    void Made(const std::string& replica_id) {
      absl::MutexLock lock(&publications_.mutex_);
      publications_.running_[artifact_id_].made.push_back(replica_id);
    }
    void Published() {
      absl::MutexLock lock(&publications_.mutex_);
      publications_.running_[artifact_id_].published = true;
    }

   private:
    Publications& publications_;
    const std::string artifact_id_;
    const Drop drop_;
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
  struct Running {
    int puts = 0;
    bool published = false;
    std::vector<std::string> made;
  };

  // One put less. The replicas that are to be dropped with it.
  std::vector<std::string> Leave(const std::string& artifact_id) {
    absl::MutexLock lock(&mutex_);
    recent_.insert(artifact_id);
    const auto running = running_.find(artifact_id);
    if (--running->second.puts > 0) return {};
    const Running ended = std::move(running->second);
    running_.erase(running);
    return ended.published ? std::vector<std::string>() : ended.made;
  }

  mutable absl::Mutex mutex_;
  std::map<std::string, Running> running_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> recent_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
