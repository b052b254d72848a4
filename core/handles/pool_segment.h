// What a receiver demands of a pool's segment before it maps it: the process that passed the descriptor may
// be anything that listens on a path. Stateless.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace tensorcast {

// OK when reading the first `bytes` of this descriptor's memory cannot raise SIGBUS, whatever its other
// holders do: a memfd of at least so many bytes, with a sealed size (F_SEAL_SHRINK | F_SEAL_GROW), and from
// which no page can be taken (F_SEAL_FUTURE_WRITE or F_SEAL_WRITE). INVALID_ARGUMENT otherwise. Its holders
// may still write to mappings that they made before: a reader digests its own copy.
absl::Status CheckPoolSegment(int fd, uint64_t bytes);

}  // namespace tensorcast
