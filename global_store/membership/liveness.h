// How often nodes send heartbeats, and how long a silent node counts as alive. Both depend only on the size
// of the fleet, so that the rate of all heartbeats together is bounded. Pure function.
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

// The max size of the fleet within this time counts. So when many nodes are lost at once, their heartbeat
// interval does not shrink before they return.
inline constexpr absl::Duration kFleetAge = absl::Minutes(10);

// `small` is the configured liveness. It applies while all nodes together send at most
// kMaxHeartbeatsPerSecond; with more nodes both values grow by the same factor.
Liveness LivenessOf(const Liveness& small, size_t nodes);

}  // namespace tensorcast::global_store
