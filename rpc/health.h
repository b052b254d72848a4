// Asking a server whether it serves, by the standard health service.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace tensorcast::rpc {

// Connects to `address` anew, whatever connections to it exist, and asks. OK when it serves; UNAVAILABLE or
// DEADLINE_EXCEEDED says that it does not answer; another error is its answer. Blocks. Thread-safe.
absl::Status CheckHealth(const std::string& address, absl::Duration timeout);

}  // namespace tensorcast::rpc
