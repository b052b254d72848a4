// How often nodes are to be heard, and how long a silent one is believed alive: a pure function of the size
// of the fleet, so that heartbeats together cost the store the same however many nodes there are.
#pragma once

#include <cstddef>

#include "absl/time/time.h"

namespace tensorcast::global_store {

struct Liveness {
  absl::Duration heartbeat_interval;
  absl::Duration node_ttl;
};

// Heartbeats of all nodes together. Each costs the store 100 to 200 microseconds of CPU.
inline constexpr double kMaxHeartbeatsPerSecond = 1500;

// The largest fleet of so long counts: where many nodes are lost at once, those that come back do not find a
// store that wants to hear them more often.
inline constexpr absl::Duration kFleetAge = absl::Minutes(10);

// `small` as configured, which holds up to kMaxHeartbeatsPerSecond; with more nodes both grow by one factor.
Liveness LivenessOf(const Liveness& small, size_t nodes);

}  // namespace tensorcast::global_store
