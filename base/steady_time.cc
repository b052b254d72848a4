#include "base/steady_time.h"

#include <ctime>

namespace tensorcast {
namespace {

// A step that nobody would notice in a trace, and more than two readings one after the other are apart.
constexpr absl::Duration kSmallestStep = absl::Milliseconds(100);

int64_t ReadNanos(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);  // cannot fail for these clocks
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

int64_t WallMinusMonotonic() {
  const int64_t monotonic = ReadNanos(CLOCK_MONOTONIC);
  return ReadNanos(CLOCK_REALTIME) - monotonic;
}

int64_t Anchor() {
  static const int64_t anchor = WallMinusMonotonic();
  return anchor;
}

}  // namespace

absl::Time SteadyNow() {
  const int64_t anchor = Anchor();
  return absl::FromUnixNanos(anchor + ReadNanos(CLOCK_MONOTONIC));
}

absl::Time ToWallTime(absl::Time steady) {
  const int64_t anchor = Anchor();
  return steady + absl::Trunc(absl::Nanoseconds(WallMinusMonotonic() - anchor), kSmallestStep);
}

}  // namespace tensorcast
