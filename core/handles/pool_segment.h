// Checks a segment of another process's pool before this process maps the segment. The other process is not
// trusted. Stateless; thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace tensorcast {

// INVALID_ARGUMENT unless `fd` is a memfd of at least `bytes` bytes with the seals F_SEAL_SHRINK,
// F_SEAL_GROW, and F_SEAL_FUTURE_WRITE or F_SEAL_WRITE. With these seals no other process can make a read of
// the first `bytes` bytes raise SIGBUS. Other processes may still write through mappings that they made
// earlier, so a reader must digest its own copy.
absl::Status CheckPoolSegment(int fd, uint64_t bytes);

}  // namespace tensorcast
