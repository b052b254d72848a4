// The time that deadlines, leases and ages are measured in: only its passing moves it. Setting a machine's
// wall clock neither ends what still has time nor keeps what has none.
//
// A type of its own, so that the compiler refuses to compare it with wall time (absl::Time), which is for
// durable facts and for what people read. The two meet in ToWallTime and FromWallTime alone.
//
// It is CLOCK_MONOTONIC, counted from the wall clock's reading when the process first asked, and means
// nothing to another process: what travels is a duration (a deadline) or wall time (a report).
//
// Waiting for one: AwaitWithTimeout(..., TimeLeft(deadline)). Abseil's waits for an absl::Time follow the
// wall clock. Thread-safe.
#pragma once

#include <compare>
#include <iosfwd>
#include <utility>

#include "absl/time/time.h"

namespace tensorcast {

class SteadyTime {
 public:
  // No moment yet: earlier than any that SteadyNow tells. Tests with a clock of their own count from it.
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
  // As the duration since the default one; for logs and failed tests.
  friend std::ostream& operator<<(std::ostream& out, SteadyTime time);

 private:
  friend SteadyTime SteadyNow();
  friend absl::Time ToWallTime(SteadyTime time);
  friend SteadyTime FromWallTime(absl::Time time);
  explicit constexpr SteadyTime(absl::Duration since_epoch) : since_epoch_(since_epoch) {}

  absl::Duration
      since_epoch_;  // the wall clock's epoch, as the wall clock was set when the process first asked
};

SteadyTime SteadyNow();

// Until `deadline`; negative when it has passed.
inline absl::Duration TimeLeft(SteadyTime deadline) { return deadline - SteadyNow(); }

// What the wall clock, as it is set now, calls that moment. A clock that was set by less than 0.1 s counts as
// not set, so that times of one trace keep their distances.
absl::Time ToWallTime(SteadyTime time);
// The inverse, while the wall clock is not set in between: for times that others report.
SteadyTime FromWallTime(absl::Time time);

}  // namespace tensorcast
