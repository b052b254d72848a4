// A limit on bytes a second, shared by all that moves in one direction: a token bucket, written as the time
// at which everything that has moved will be paid for.
//
// Code that moves bytes asks first whether some may move, and pays for what did: so a step may go beyond what
// is there, and the next one waits for it. Over any time T no more than rate x (T + burst) moves, and one
// step of each caller. Pure: time is given. Thread-safe.
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_time.h"

namespace tensorcast {

class RateLimit {
 public:
  // What may move at once after a pause is the bytes of so long.
  static constexpr absl::Duration kBurst = absl::Milliseconds(50);

  // 0: there is no limit.
  explicit RateLimit(uint64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}
  RateLimit(const RateLimit&) = delete;
  RateLimit& operator=(const RateLimit&) = delete;

  uint64_t bytes_per_second() const { return bytes_per_second_; }

  // When bytes may move: `now` or earlier means at once.
  SteadyTime ReadyAt(SteadyTime now) const ABSL_LOCKS_EXCLUDED(mutex_);
  // So many moved.
  void Spend(uint64_t bytes, SteadyTime now) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const uint64_t bytes_per_second_;
  mutable absl::Mutex mutex_;
  SteadyTime paid_at_ ABSL_GUARDED_BY(mutex_) = SteadyTime::InfinitePast();
};

}  // namespace tensorcast
