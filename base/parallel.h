// Calls one function for many indices on a few threads: to query many nodes or read many ranges, where each
// call mostly waits.
#pragma once

#include <cstddef>

#include "absl/functional/function_ref.h"

namespace tensorcast {

// Calls `task` once for each index below `count`, on at most `max_threads` threads including the caller's.
// Each thread takes the next free index, so a slow call delays only its own thread. Returns when all calls
// have returned. Where no more threads can be started, fewer do the work. `task` must not throw.
void ForEachInParallel(size_t count, size_t max_threads, absl::FunctionRef<void(size_t index)> task);

}  // namespace tensorcast
