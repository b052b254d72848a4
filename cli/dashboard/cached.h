// A server's answer that many tabs share. One thread at a time fetches a new answer. Thread-safe.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast::dashboard {

template <class T>
class Cached {
 public:
  using Value = absl::StatusOr<std::shared_ptr<const T>>;

  // Returns the last answer if it is still valid, else the result of `fetch`. An answer is valid for 20 times
  // the duration of `fetch`, but at least 0.9 s and at most 30 s. So `fetch` usually takes at most about 5 %
  // of a server's time. An error is valid for 0.9 s.
  Value Get(absl::FunctionRef<absl::StatusOr<T>()> fetch) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      const absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&idle_));
      if (value_.has_value() && SteadyNow() < good_until_) return *value_;
      idle_ = false;
    }
    // No lock is held while `fetch` calls a server.
    const SteadyTime begin = SteadyNow();
    absl::StatusOr<T> fetched = fetch();
    Value value =
        fetched.ok() ? Value(std::make_shared<const T>(*std::move(fetched))) : Value(fetched.status());
    const absl::MutexLock lock(&mutex_);
    const absl::Duration took = value.ok() ? SteadyNow() - begin : absl::ZeroDuration();
    good_until_ = SteadyNow() + std::clamp(20 * took, absl::Milliseconds(900), absl::Seconds(30));
    value_ = value;
    idle_ = true;
    return value;
  }

 private:
  absl::Mutex mutex_;
  bool idle_ ABSL_GUARDED_BY(mutex_) = true;  // no call of `fetch` is under way
  std::optional<Value> value_ ABSL_GUARDED_BY(mutex_);
  SteadyTime good_until_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::dashboard
