// The running puts of this node, by artifact id.
//
// A failed put drops the replicas that it made. If several puts of one artifact run at the same time, the
// last put to end drops the replicas, unless one of the puts was published.
//
// A heartbeat's answer may report that an artifact was deleted. Then the node drops the artifact's replicas.
// The node ignores the report if a put of the artifact runs, or ended since the heartbeat was filled in: the
// deletion may be older than the publication. A new put of an artifact waits while the artifact's replicas
// are being dropped.
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

  // One put of the artifact, until it is published or failed.
  class Hold {
   public:
    // Make the hold before the put looks for replicas of the artifact. The destructor may call `drop`,
    // without a lock.
    Hold(Publications* publications, std::string_view artifact_id, Drop drop)
        : publications_(*publications), artifact_id_(artifact_id), drop_(std::move(drop)) {
      publications_.Join(artifact_id_);
    }
    ~Hold() { publications_.Leave(artifact_id_, drop_); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

    // Records that this put made the replica.
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

  // Call BeginHeartbeat before a heartbeat is filled in.
  void BeginHeartbeat() {
    absl::MutexLock lock(&mutex_);
    recent_.clear();
  }
  // Call DropUnlessProtected when the heartbeat's answer reports that the artifact was deleted. Calls `drop`,
  // without a lock, unless a put protects the artifact (see above).
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
  // The ids of artifacts with replicas that are being dropped. Has an id twice if a failed put and a deletion
  // both drop replicas.
  std::multiset<std::string> dropping_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
