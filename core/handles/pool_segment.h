// The check that a receiver makes before it maps a segment of another pool. It does not trust the process
// that passed the descriptor, which may be any process that listens on a path. Stateless.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace tensorcast {

// OK if reading the first `bytes` of the descriptor's memory cannot raise SIGBUS, whatever other holders do.
// That needs a memfd of at least `bytes` bytes with a sealed size (F_SEAL_SHRINK | F_SEAL_GROW), from which
// no page can be removed (F_SEAL_FUTURE_WRITE or F_SEAL_WRITE). INVALID_ARGUMENT otherwise. Other holders may
// still write through mappings that they made earlier, so a reader must digest its own copy.
absl::Status CheckPoolSegment(int fd, uint64_t bytes);

}  // namespace tensorcast
