// The check that a receiver makes before it maps a segment of another process's pool. The receiver does not
// trust the process that passed the descriptor, which may be any process that listens on a path. Stateless;
// thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace tensorcast {

// OK if no other process can make a read of the first `bytes` bytes of the descriptor's memory raise SIGBUS;
// else INVALID_ARGUMENT. The descriptor must be a memfd of at least `bytes` bytes with a sealed size
// (F_SEAL_SHRINK | F_SEAL_GROW), from which no page can be removed (F_SEAL_FUTURE_WRITE or F_SEAL_WRITE).
// Other processes may still write through mappings that they made earlier, so a reader must digest its own
// copy.
absl::Status CheckPoolSegment(int fd, uint64_t bytes);

}  // namespace tensorcast
