// A lock for each name. Use it if long work on one named file must not delay the work on other files.
//
// Thread-safe.
#pragma once

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"

namespace tensorcast {

class NameLocks {
 public:
  // Holds a name until destroyed.
  class Held {
   public:
    Held() = default;
    Held(NameLocks* locks, std::string name) : locks_(locks), name_(std::move(name)) {}
    Held(Held&& other) noexcept
        : locks_(std::exchange(other.locks_, nullptr)), name_(std::move(other.name_)) {}
    Held& operator=(Held&&) = delete;
    ~Held() {
      if (locks_ != nullptr) locks_->Release(name_);
    }

   private:
    NameLocks* locks_ = nullptr;
    std::string name_;
  };

  // Blocks while the name is held.
  Held Acquire(const std::string& name) {
    absl::MutexLock lock(&mutex_);
    auto free = [this, &name]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !held_.contains(name); };
    mutex_.Await(absl::Condition(&free));
    held_.insert(name);
    return Held(this, name);
  }

 private:
  void Release(const std::string& name) {
    absl::MutexLock lock(&mutex_);
    held_.erase(name);
  }

  absl::Mutex mutex_;
  absl::flat_hash_set<std::string> held_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
