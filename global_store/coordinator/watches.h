// The watchers of keys and tasks. A watcher is called on the thread that reports a change, in the order of
// the changes, without a lock of this class. Watchers must not block. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "global_store/catalog/facts.h"
#include "global_store/tasks/task.h"

namespace tensorcast::global_store {

struct KeyWatcher {
  std::string key;     // watches this key; if empty, see `prefix`
  std::string prefix;  // if `key` is empty: watches the keys with this prefix
  std::function<void(const KeyRecord&)> on_change;
  std::function<void()> on_listed;             // called after `on_change` for all current keys
  std::function<void(absl::Status)> on_close;  // called when the global store ends the watch

  bool Matches(const KeyRecord& record) const {
    return key.empty() ? record.name.starts_with(prefix) : record.name == key;
  }
};

struct TaskWatcher {
  std::string artifact_id;  // empty: all artifacts
  std::function<void(const TaskChange&)> on_change;
  std::function<void()> on_listed;
  std::function<void(absl::Status)> on_close;

  bool Matches(const TaskChange& change) const {
    return artifact_id.empty() || change.task.record.artifact_id == artifact_id;
  }
};

template <class Watcher>
class Watches {
 public:
  // Returns an id for Remove. If the watches are closed, calls `on_close` and returns 0.
  uint64_t Add(std::shared_ptr<const Watcher> watcher) {
    absl::Status closed;
    {
      absl::MutexLock lock(&mutex_);
      if (closed_.ok()) {
        watchers_[++last_id_] = std::move(watcher);
        return last_id_;
      }
      closed = closed_;
    }
    watcher->on_close(closed);
    return 0;
  }

  // Another thread may still be in a call to the watcher when Remove returns.
  void Remove(uint64_t id) {
    std::shared_ptr<const Watcher> removed;  // destroyed after the lock is released
    absl::MutexLock lock(&mutex_);
    auto found = watchers_.find(id);
    if (found == watchers_.end()) return;
    removed = std::move(found->second);
    watchers_.erase(found);
  }

  template <class Change>
  void Tell(const Change& change) {
    // The shared pointers keep a watcher alive if Remove removes it during the calls below.
    std::vector<std::shared_ptr<const Watcher>> told;
    {
      absl::MutexLock lock(&mutex_);
      for (const auto& [id, watcher] : watchers_) {
        if (watcher->Matches(change)) told.push_back(watcher);
      }
    }
    for (const auto& watcher : told) watcher->on_change(change);
  }

  // Ends every watch with `status`; Add ends later watches at once.
  void Close(const absl::Status& status) {
    // Both changes happen under one lock: a watcher is either closed here or refused by Add.
    std::map<uint64_t, std::shared_ptr<const Watcher>> closing;
    {
      absl::MutexLock lock(&mutex_);
      closed_ = status;
      closing.swap(watchers_);
    }
    for (const auto& [id, watcher] : closing) watcher->on_close(status);
  }

 private:
  absl::Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<const Watcher>> watchers_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::global_store
