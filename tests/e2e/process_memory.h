// Changes and measures the memory of other processes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tensorcast {

// Writes `written` over `found` wherever the process's shared memory, which has a daemon's pool, contains it;
// returns the number of places. PERMISSION_DENIED for a caller that is not root and may not trace the
// process. REQUIRES: both have equal lengths.
absl::StatusOr<int> OverwriteSharedMemory(pid_t pid, const std::string& found, const std::string& written);

// The memory of all host pools of which these processes have a part open or mapped, each byte counted once.
// Only root sees their mappings.
uint64_t HostPoolMemory(const std::vector<pid_t>& processes);

}  // namespace tensorcast
