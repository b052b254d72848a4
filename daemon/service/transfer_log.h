// The last transfers of this node, newest first: what `status` shows and a person asks
// for when a load was slow. Thread-safe.
#pragma once

#include <deque>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/engine/transfer.h"

namespace tensorcast::daemon {

class TransferLog {
 public:
  explicit TransferLog(size_t capacity = 32) : capacity_(capacity) {}

  void Add(const TransferReport& report) {
    absl::MutexLock lock(&mutex_);
    entries_.push_front(report);
    if (entries_.size() > capacity_) {
      entries_.pop_back();
    }
  }

  std::vector<TransferReport> Newest() const {
    absl::MutexLock lock(&mutex_);
    return {entries_.begin(), entries_.end()};
  }

 private:
  const size_t capacity_;
  mutable absl::Mutex mutex_;
  std::deque<TransferReport> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
