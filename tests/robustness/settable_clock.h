// The wall clock of one machine, set as a test likes: for processes under libfaketime, which reads the offset
// from a file whenever they ask for the time. What only passes (CLOCK_MONOTONIC, CLOCK_BOOTTIME) is left
// alone, as a real clock that is set leaves it. Thread-compatible.
#pragma once

#include <string>

#include "tools/workshop/cluster/process.h"

namespace tensorcast {

class SettableClock {
 public:
  // Empty where libfaketime is there, else what to install.
  static std::string Missing();
  // Right at first. The folder must exist.
  explicit SettableClock(const std::string& folder);

  // Of the processes on that machine.
  const Environment& environment() const { return environment_; }
  // "+6h", "-6h", "+0": for all of them, from now on.
  void Set(const std::string& offset) const;
  // libfaketime removes its shared memory when its process ends, but not when that is killed.
  static void RemoveSharedMemoryOf(int killed);

 private:
  const std::string offset_;  // a file
  const Environment environment_;
};

}  // namespace tensorcast
