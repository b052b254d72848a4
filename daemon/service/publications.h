// The puts of this node, by the artifact that they store, from the moment at which that is known to its
// publication or failure.
//
// What a put made is dropped when it fails; unless another put of the same content took it for its own
// meanwhile: then by the last of them, and only if none was published.
//
// An artifact that is about to be published, or was since the last heartbeat was filled in, is protected from
// the global store's word that it was deleted: that is older than the new one, and is not followed. (It comes
// again with the next heartbeat if it is still true.) While what there is of an artifact is being dropped,
// for that word or after a failed put, a new put of it waits: it would else take for its own what is about to
// go.
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
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

namespace tensorcast::daemon {

class Publications {
 public:
  using Drop = std::function<void(const std::string& replica_id)>;

  // One put of the artifact, until it was published or failed.
  class Hold {
   public:
    // Before the put looks for replicas of the artifact. `drop` may be called at the end, without a lock.
    Hold(Publications* publications, std::string_view artifact_id, Drop drop)
        : publications_(*publications), artifact_id_(artifact_id), drop_(std::move(drop)) {
      publications_.Join(artifact_id_);
    }
    ~Hold() { publications_.Leave(artifact_id_, drop_); }
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
  // Calls `drop`, without a lock, because the answer to that heartbeat says that the artifact was deleted;
  // unless that may be wrong.
  void DropUnlessProtected(const std::string& artifact_id, absl::FunctionRef<void()> drop) {
    {
      absl::MutexLock lock(&mutex_);
      if (running_.contains(artifact_id) || recent_.contains(artifact_id)) return;
      dropping_.insert(artifact_id);
    }
    drop();
    EndDropping(artifact_id);
  }

 private:
  struct Running {
    int puts = 0;
    bool published = false;
    std::vector<std::string> made;
  };

  void Join(const std::string& artifact_id) {
    absl::MutexLock lock(&mutex_);
    const auto stands = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !dropping_.contains(artifact_id); };
    mutex_.Await(absl::Condition(&stands));
    ++running_[artifact_id].puts;
  }

  void Leave(const std::string& artifact_id, const Drop& drop) {
    std::vector<std::string> made;
    {
      absl::MutexLock lock(&mutex_);
      recent_.insert(artifact_id);
      const auto running = running_.find(artifact_id);
      if (--running->second.puts > 0) return;
      if (!running->second.published) made = std::move(running->second.made);
      running_.erase(running);
      dropping_.insert(artifact_id);
    }
    for (const std::string& replica_id : made) drop(replica_id);
    EndDropping(artifact_id);
  }

  void EndDropping(const std::string& artifact_id) {
    absl::MutexLock lock(&mutex_);
    dropping_.erase(dropping_.find(artifact_id));
  }

  absl::Mutex mutex_;
  std::map<std::string, Running> running_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> recent_ ABSL_GUARDED_BY(mutex_);
  std::multiset<std::string> dropping_ ABSL_GUARDED_BY(mutex_);  // a failed put's end can meet a deletion
};

}  // namespace tensorcast::daemon
