// A limit on bytes per second, shared by all transfers of one direction: a token bucket. A caller asks when
// it may move bytes (ReadyAt), moves them, and then reports their number (Spend). In any time T at most rate
// x (T + kBurst) bytes move, plus what each caller moves before Spend. Callers pass the time. Thread-safe.
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast {

class RateLimit {
 public:
  // After a pause, up to kBurst x bytes_per_second bytes may move at once.
  static constexpr absl::Duration kBurst = absl::Milliseconds(50);

  // 0: no limit.
  explicit RateLimit(uint64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}
  RateLimit(const RateLimit&) = delete;
  RateLimit& operator=(const RateLimit&) = delete;

  uint64_t bytes_per_second() const { return bytes_per_second_; }

  // The time from which bytes may move; `now` or earlier means at once.
  SteadyTime ReadyAt(SteadyTime now) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Counts `bytes` that have moved.
  void Spend(uint64_t bytes, SteadyTime now) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const uint64_t bytes_per_second_;
  mutable absl::Mutex mutex_;
  SteadyTime paid_at_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
};

}  // namespace tensorcast
