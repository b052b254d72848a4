// Resident memory of a process, its pools apart. Stateless; thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace tensorcast::bench {

struct ResidentMemory {
  uint64_t pools_bytes = 0;   // mappings of host pools (its own and its peers') and of fake devices
  uint64_t beyond_bytes = 0;  // all the rest: heap, stacks, code, libraries

  friend bool operator==(const ResidentMemory&, const ResidentMemory&) = default;
};

// From the text of /proc/<pid>/smaps.
ResidentMemory ParseSmaps(std::string_view smaps);

// NOT_FOUND when there is no such process.
absl::StatusOr<ResidentMemory> ReadResidentMemory(pid_t pid);

}  // namespace tensorcast::bench
