// Sets the wall clock of this process only: a program that links this file has a clock_gettime of its own,
// which libraries call too. CLOCK_MONOTONIC is not affected, as on a machine after its clock is set.
// Thread-safe.
#pragma once

#include "absl/time/time.h"

namespace tensorcast::testing {

// While the object lives, the wall clock is ahead of the machine's by `offset`. One object at a time.
class WallClockSet {
 public:
  explicit WallClockSet(absl::Duration offset);
  ~WallClockSet();
  WallClockSet(const WallClockSet&) = delete;
  WallClockSet& operator=(const WallClockSet&) = delete;
};

}  // namespace tensorcast::testing
