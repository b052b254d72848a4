// A clock for leases given to other processes: it also counts the time in which the machine is suspended,
// which SteadyNow() does not. Thread-safe.
#pragma once

#include "absl/time/time.h"

namespace tensorcast {

// The time since the machine was started (CLOCK_BOOTTIME).
absl::Duration SinceBoot();

}  // namespace tensorcast
