// The time for deadlines, leases and ages. Setting the machine's wall clock does not change this time.
//
// SteadyTime is a separate type, so that the compiler refuses to compare it with wall time (absl::Time). Only
// ToWallTime and FromWallTime convert between the two.
//
// A SteadyTime is CLOCK_MONOTONIC plus an offset. It equals the wall clock at the process's first use, and
// has no meaning in another process. To other processes send a duration (a deadline) or wall time (a report).
//
// To wait until a SteadyTime, use AwaitWithTimeout(..., TimeLeft(deadline)): Abseil's waits for an absl::Time
// follow the wall clock. Thread-safe.
#pragma once

#include <compare>
#include <iosfwd>
#include <utility>

#include "absl/time/time.h"

namespace tensorcast {

class SteadyTime {
 public:
  // Earlier than every time that SteadyNow returns.
  constexpr SteadyTime() = default;
  static constexpr SteadyTime InfinitePast() { return SteadyTime(-absl::InfiniteDuration()); }
  static constexpr SteadyTime InfiniteFuture() { return SteadyTime(absl::InfiniteDuration()); }

  SteadyTime& operator+=(absl::Duration duration) {
    since_epoch_ += duration;
    return *this;
  }
  SteadyTime& operator-=(absl::Duration duration) {
    since_epoch_ -= duration;
    return *this;
  }
  friend SteadyTime operator+(SteadyTime time, absl::Duration duration) { return time += duration; }
  friend SteadyTime operator-(SteadyTime time, absl::Duration duration) { return time -= duration; }
  friend absl::Duration operator-(SteadyTime a, SteadyTime b) { return a.since_epoch_ - b.since_epoch_; }

  friend constexpr bool operator==(SteadyTime a, SteadyTime b) { return a.since_epoch_ == b.since_epoch_; }
  friend constexpr std::strong_ordering operator<=>(SteadyTime a, SteadyTime b) {
    if (a.since_epoch_ == b.since_epoch_) return std::strong_ordering::equal;
    return a.since_epoch_ < b.since_epoch_ ? std::strong_ordering::less : std::strong_ordering::greater;
  }
  template <typename H>
  friend H AbslHashValue(H hash, SteadyTime time) {
    return H::combine(std::move(hash), time.since_epoch_);
  }
  // Printed as the duration since a default-constructed SteadyTime; for logs and failed tests.
  friend std::ostream& operator<<(std::ostream& out, SteadyTime time);

 private:
  friend SteadyTime SteadyNow();
  friend absl::Time ToWallTime(SteadyTime time);
  friend SteadyTime FromWallTime(absl::Time time);
  explicit constexpr SteadyTime(absl::Duration since_epoch) : since_epoch_(since_epoch) {}

  absl::Duration since_epoch_;  // by the wall clock as it was set at the process's first use
};

SteadyTime SteadyNow();

// The time until `deadline`; negative when it has passed.
inline absl::Duration TimeLeft(SteadyTime deadline) { return deadline - SteadyNow(); }

// The same moment by the current wall clock. Ignores adjustments of the wall clock below 0.1 s, so that the
// distances between the times of one trace stay the same.
absl::Time ToWallTime(SteadyTime time);
// For times that other processes report. The inverse of ToWallTime unless the wall clock is set in between.
SteadyTime FromWallTime(absl::Time time);

}  // namespace tensorcast
