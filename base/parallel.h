// Calls one function for many indices on a few threads. Meant for calls that mostly wait.
#pragma once

#include <cstddef>

#include "absl/functional/function_ref.h"

namespace tensorcast {

// Calls `task` once for each index below `count`, on at most `max_threads` threads including the caller's.
// Returns when all calls have returned. A slow call delays only its own thread. If the system refuses
// threads, fewer threads do the work. `task` must be thread-safe and must not throw.
void ForEachInParallel(size_t count, size_t max_threads, absl::FunctionRef<void(size_t index)> task);

}  // namespace tensorcast
