// What a process needs of the system's limits, looked at before it begins: libraries abort where they are
// refused a thread or a descriptor, and say less.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace tensorcast {

struct ProcessNeeds {
  const char* who = "";       // "a daemon", for the message
  int descriptors = 0;        // to serve at all; connections come on top
  int threads = 0;            // at most at a time
  uint64_t memory_bytes = 0;  // pools and the like, beside what every process needs
};

// RESOURCE_EXHAUSTED says which limit is too low, what it is and how to raise it. Threads count by the
// address space of their stacks.
absl::Status CheckProcessLimits(const ProcessNeeds& needs);

// From here on a process that is refused memory (by its limit of address space, or with overcommitting
// switched off) says so on stderr and ends with this exit code, instead of by an abort.
inline constexpr int kOutOfMemoryExitCode = 71;
void ExitWhenOutOfMemory();

}  // namespace tensorcast
