// How often nodes send heartbeats, and how long a silent node counts as alive. Both times grow with the
// number of nodes, so that the rate of all heartbeats together stays bounded. Pure function.
#pragma once

#include <cstddef>

#include "absl/time/time.h"

namespace tensorcast::global_store {

struct Liveness {
  absl::Duration heartbeat_interval;
  absl::Duration node_ttl;
};

// The max rate of heartbeats of all nodes together. A heartbeat costs the store 100 to 200 microseconds of
// CPU.
inline constexpr double kMaxHeartbeatsPerSecond = 1500;

// The interval depends on the max number of nodes within this time. So a loss of many nodes does not shrink
// the interval at once.
inline constexpr absl::Duration kFleetAge = absl::Minutes(10);

// `small`: the configured liveness, for fleets that send at most kMaxHeartbeatsPerSecond. With more nodes
// both values grow by the same factor.
Liveness LivenessOf(const Liveness& small, size_t nodes);

}  // namespace tensorcast::global_store
