// Another process's memory, changed behind its back.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"

namespace tensorcast {

// Writes `written` over `found` wherever the process's shared memory, which is where a daemon has its pool,
// holds it; how many places there were. PERMISSION_DENIED for who is neither root nor may trace the process.
// REQUIRES: both are of one length.
absl::StatusOr<int> OverwriteSharedMemory(pid_t pid, const std::string& found, const std::string& written);

}  // namespace tensorcast
