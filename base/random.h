// Unpredictable bytes for identifiers. Private to this folder.
#pragma once

#include <cstddef>

namespace tensorcast {

// Fills from the kernel's generator: safe across fork, and good enough for ids that double as secrets
// (tickets). `count` is at most 256. Thread-safe.
void FillRandom(void* bytes, size_t count);

}  // namespace tensorcast
