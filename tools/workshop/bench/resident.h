// The resident memory of a process, with its pools counted separately. Stateless; thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace tensorcast::bench {

struct ResidentMemory {
  uint64_t pools_bytes = 0;   // mappings of host pools (its own and its peers') and of fake devices
  uint64_t beyond_bytes = 0;  // the rest: heap, stacks, code, libraries

  friend bool operator==(const ResidentMemory&, const ResidentMemory&) = default;
};

// Parses the text of /proc/<pid>/smaps.
ResidentMemory ParseSmaps(std::string_view smaps);

// NOT_FOUND when the process does not exist.
absl::StatusOr<ResidentMemory> ReadResidentMemory(pid_t pid);

}  // namespace tensorcast::bench
