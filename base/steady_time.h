// The time that deadlines, leases and ages are measured in: nothing but its passing moves it, so a machine
// whose clock is set neither ends what still has time nor keeps what has none.
//
// It is CLOCK_MONOTONIC, counted from the wall clock's reading when the process first asked, so that it reads
// like a time of day. An absl::Time of ours is one of these unless its name says otherwise; it means nothing
// to another process. Durable facts and what people read have wall time (absl::Now). Thread-safe.
//
// Waiting for one: AwaitWithTimeout(..., TimeLeft(deadline)). Abseil's waits for an absl::Time follow the
// wall clock.
#pragma once

#include "absl/time/time.h"

namespace tensorcast {

absl::Time SteadyNow();

// Until `deadline`; negative when it has passed.
inline absl::Duration TimeLeft(absl::Time deadline) { return deadline - SteadyNow(); }

// What the wall clock, as it is set now, calls that moment. The same time where it was never set by more than
// 0.1 s.
absl::Time ToWallTime(absl::Time steady);

}  // namespace tensorcast
