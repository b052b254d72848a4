#include "global_store/scheduler/pace.h"

#include <algorithm>
#include <cmath>

namespace tensorcast::global_store {

absl::Duration LookSchedule::Next() {
  if (looks_ == kMaxLooks) return absl::InfiniteDuration();
  return kFirstPause * std::pow(kFactor, looks_++);
}

std::optional<absl::Duration> HostmatePatience::Wait(SteadyTime now) {
  // The first call starts the receiver's patience. `kTurn - left` below is how long it has waited so far.
  if (until_ == SteadyTime::InfiniteFuture()) until_ = now + kTurn;
  if (now >= until_) return std::nullopt;
  const absl::Duration left = until_ - now;
  return std::min(left, std::max(kShortestPause, kTurn - left));
}

}  // namespace tensorcast::global_store
