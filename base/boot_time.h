// A clock for leases given to other processes. Unlike SteadyNow(), it also counts the time in which the
// machine is suspended. Thread-safe.
#pragma once

#include "absl/time/time.h"

namespace tensorcast {

// The time since the machine was started (CLOCK_BOOTTIME).
absl::Duration SinceBoot();

}  // namespace tensorcast
