// Shared by the servers that a benchmark runs in processes of their own.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace tensorcast::bench {

// Writes `address` as a line to `ready_fd`, then blocks until SIGTERM or SIGINT. REQUIRES: both are blocked
// in every thread.
absl::Status AnnounceAndAwaitSignal(int ready_fd, std::string_view address);

}  // namespace tensorcast::bench
