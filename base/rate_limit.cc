#include "base/rate_limit.h"

#include <algorithm>

namespace tensorcast {

SteadyTime RateLimit::ReadyAt(SteadyTime now) const {
  if (bytes_per_second_ == 0) return now;
  absl::MutexLock lock(&mutex_);
  // Bytes may move while what is not paid for yet is worth at most kBurst, so that small steps need no wait
  // each.
  return std::max(now, paid_at_ - kBurst);
}

void RateLimit::Spend(uint64_t bytes, SteadyTime now) {
  if (bytes_per_second_ == 0) return;
  const absl::Duration costs =
      absl::Seconds(static_cast<double>(bytes) / static_cast<double>(bytes_per_second_));
  absl::MutexLock lock(&mutex_);
  // A pause earns nothing beyond the burst: time that passed before `now` pays for no later bytes.
  paid_at_ = std::max(paid_at_, now) + costs;
}

}  // namespace tensorcast
