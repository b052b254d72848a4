// Who watches which keys. A watcher is told what changes; it keeps at most the latest of each key for a slow
// reader. Thread-safe. Watchers are called without this class's lock, on the thread that tells of the change,
// in the order of the changes; they must not block.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "global_store/directory/facts.h"

namespace tensorcast::global_store {

struct KeyWatcher {
  std::string key;     // this key; or, when empty,
  std::string prefix;  // those that start so
  std::function<void(const KeyRecord&)> on_change;
  std::function<void()> on_listed;             // all keys as they are were told; from here on, changes
  std::function<void(absl::Status)> on_close;  // the global store ends the watch

  bool Matches(const std::string& name) const { return key.empty() ? name.starts_with(prefix) : name == key; }
};

class KeyWatches {
 public:
  // An id for Remove; 0, and `on_close` called, when the watches were closed.
  uint64_t Add(std::shared_ptr<const KeyWatcher> watcher);
  // The watcher may still be in a call on another thread when this returns.
  void Remove(uint64_t id);
  void Tell(const KeyRecord& record);
  // Ends every watch, and those to come, with `status`.
  void Close(const absl::Status& status);

  size_t size() const;

 private:
  mutable absl::Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<const KeyWatcher>> watchers_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::global_store
