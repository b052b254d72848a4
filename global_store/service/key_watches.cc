#include "global_store/service/key_watches.h"

#include <utility>

namespace tensorcast::global_store {

uint64_t KeyWatches::Add(std::shared_ptr<const KeyWatcher> watcher) {
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

void KeyWatches::Remove(uint64_t id) {
  std::shared_ptr<const KeyWatcher> removed;  // destroyed after the lock is gone
  absl::MutexLock lock(&mutex_);
  auto found = watchers_.find(id);
  if (found == watchers_.end()) return;
  removed = std::move(found->second);
  watchers_.erase(found);
}

void KeyWatches::Tell(const KeyRecord& record) {
  // Called without the lock, by shared pointers: a watcher that is removed meanwhile lives until its call has
  // returned, and may be told of one change more.
  std::vector<std::shared_ptr<const KeyWatcher>> told;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, watcher] : watchers_) {
      if (watcher->Matches(record.name)) told.push_back(watcher);
    }
  }
  for (const auto& watcher : told) watcher->on_change(record);
}

void KeyWatches::Close(const absl::Status& status) {
  // `closed_` is set under the same lock: a watcher is either among those closed here, or refused by Add.
  std::map<uint64_t, std::shared_ptr<const KeyWatcher>> closing;
  {
    absl::MutexLock lock(&mutex_);
    closed_ = status;
    closing.swap(watchers_);
  }
  for (const auto& [id, watcher] : closing) watcher->on_close(status);
}

size_t KeyWatches::size() const {
  absl::MutexLock lock(&mutex_);
  return watchers_.size();
}

}  // namespace tensorcast::global_store
