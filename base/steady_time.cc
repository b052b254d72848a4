#include "base/steady_time.h"

#include <ctime>
#include <ostream>

namespace tensorcast {
namespace {

// Too short to be noticed in a trace, and longer than the time between two consecutive readings.
constexpr absl::Duration kSmallestStep = absl::Milliseconds(100);

int64_t ReadNanos(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);  // cannot fail for these clocks
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// The two clocks are read one after the other: the result is off by the time between, which kSmallestStep
// covers.
int64_t WallMinusMonotonic() {
  const int64_t monotonic = ReadNanos(CLOCK_MONOTONIC);
  return ReadNanos(CLOCK_REALTIME) - monotonic;
}

// Taken once: two readings of SteadyTime differ by monotonic time alone, however the wall clock is set.
int64_t Anchor() {
  static const int64_t anchor = WallMinusMonotonic();
  return anchor;
}

// By how much the wall clock was set since the anchor was taken.
absl::Duration SetBy() {
  const int64_t anchor = Anchor();
  return absl::Trunc(absl::Nanoseconds(WallMinusMonotonic() - anchor), kSmallestStep);
}

}  // namespace

SteadyTime SteadyNow() {
  const int64_t anchor = Anchor();
  return SteadyTime(absl::Nanoseconds(anchor + ReadNanos(CLOCK_MONOTONIC)));
}

absl::Time ToWallTime(SteadyTime time) { return absl::UnixEpoch() + (time.since_epoch_ + SetBy()); }

SteadyTime FromWallTime(absl::Time time) { return SteadyTime(time - absl::UnixEpoch() - SetBy()); }

std::ostream& operator<<(std::ostream& out, SteadyTime time) { return out << time.since_epoch_; }

}  // namespace tensorcast
