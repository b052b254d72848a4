// How often nodes send heartbeats, and how long a silent node counts as alive: a pure function of the size of
// the fleet, so that all heartbeats together cost the store the same for any number of nodes.
#pragma once

#include <cstddef>

#include "absl/time/time.h"

namespace tensorcast::global_store {

struct Liveness {
  absl::Duration heartbeat_interval;
  absl::Duration node_ttl;
};

// The max rate of heartbeats of all nodes together. Each costs the store 100 to 200 microseconds of CPU.
inline constexpr double kMaxHeartbeatsPerSecond = 1500;

// The largest fleet within this time counts: when many nodes are lost at once, the returning ones do not meet
// a store that expects heartbeats more often.
inline constexpr absl::Duration kFleetAge = absl::Minutes(10);

// `small` is the configured one, which applies up to kMaxHeartbeatsPerSecond; with more nodes both values
// grow by one factor.
Liveness LivenessOf(const Liveness& small, size_t nodes);

}  // namespace tensorcast::global_store
