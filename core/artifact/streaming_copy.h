// A copy for bytes that nobody here reads again soon: tensor bytes on their way into a pool.
#pragma once

#include <cstddef>
#include <span>

namespace tensorcast {

// Copies `source` to `destination`, which must not overlap, past the caches where the processor can
// (non-temporal stores: the destination's old lines are not read first). Visible to other threads by ordinary
// synchronisation when it returns. Thread-safe.
void StreamingCopy(std::byte* destination, std::span<const std::byte> source);

}  // namespace tensorcast
