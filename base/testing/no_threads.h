// A system that has no thread left, for one test.
#pragma once

#include "absl/functional/function_ref.h"

namespace tensorcast::testing {

// Calls `task` on a thread that can start no thread, as where the limit of threads is reached; it can start
// processes. False when the kernel does not allow this (seccomp); `task` is not called then.
[[nodiscard]] bool WithoutThreads(absl::FunctionRef<void()> task);

}  // namespace tensorcast::testing
