// Other processes' memory: changed behind their back, and counted.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tensorcast {

// Writes `written` over `found` wherever the process's shared memory, which is where a daemon has its pool,
// holds it; how many places there were. PERMISSION_DENIED for a caller that is not root and may not trace it.
// REQUIRES: both are of one length.
absl::StatusOr<int> OverwriteSharedMemory(pid_t pid, const std::string& found, const std::string& written);

// What all host pools take of which these processes have a part open or mapped, each byte once. Only root
// sees what they have mapped.
uint64_t HostPoolMemory(const std::vector<pid_t>& processes);

}  // namespace tensorcast
