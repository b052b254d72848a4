// A wall clock that tests set, for the processes of one simulated machine. They run under libfaketime, which
// reads the offset from a file whenever they ask for the time. CLOCK_MONOTONIC and CLOCK_BOOTTIME are not
// changed, as when a real clock is set. Thread-compatible.
#pragma once

#include <string>

#include "tools/workshop/cluster/process.h"

namespace tensorcast {

class SettableClock {
 public:
  // Empty if libfaketime is installed, else what to install.
  static std::string Missing();
  // The clock is right at first. The folder must exist.
  explicit SettableClock(const std::string& folder);

  // The environment for the processes on that machine.
  const Environment& environment() const { return environment_; }
  // Sets "+6h", "-6h", "+0" for all of them, from now on.
  void Set(const std::string& offset) const;
  // libfaketime removes its shared memory when its process ends, but not when the process is killed.
  static void RemoveSharedMemoryOf(int killed);

 private:
  const std::string offset_;  // path of a file
  const Environment environment_;
};

}  // namespace tensorcast
