// Sets the wall clock of this process, and of nothing else: a program that links this has a clock_gettime of
// its own, which libraries call too. CLOCK_MONOTONIC goes on as before, as it would on a machine after its
// clock is set. Thread-safe.
#pragma once

#include "absl/time/time.h"

namespace tensorcast::testing {

// From now on the wall clock is ahead of the machine's by `offset`, until this goes; one at a time.
class WallClockSet {
 public:
  explicit WallClockSet(absl::Duration offset);
  ~WallClockSet();
  WallClockSet(const WallClockSet&) = delete;
  WallClockSet& operator=(const WallClockSet&) = delete;
};

}  // namespace tensorcast::testing
