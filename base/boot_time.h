// For promises to others that hold for a while: a lease goes on ending while the machine is suspended, which
// SteadyNow() does not count. Thread-safe.
#pragma once

#include "absl/time/time.h"

namespace tensorcast {

// Since the machine was started (CLOCK_BOOTTIME).
absl::Duration SinceBoot();

}  // namespace tensorcast
