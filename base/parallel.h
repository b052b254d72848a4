// One function for many indices, on a few threads: to ask many nodes, or to read many ranges, where each call
// mostly waits.
#pragma once

#include <cstddef>

#include "absl/functional/function_ref.h"

namespace tensorcast {

// Calls `task` once for each index below `count`, from at most `max_threads` threads, of which the caller's
// is one. Each takes the next index that none has taken, so a call that takes long holds up its own thread
// alone. Returns when all calls have. Where no more threads can be started, fewer do the work. `task` must
// not throw.
void ForEachInParallel(size_t count, size_t max_threads, absl::FunctionRef<void(size_t index)> task);

}  // namespace tensorcast
