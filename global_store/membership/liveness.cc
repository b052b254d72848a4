#include "global_store/membership/liveness.h"

namespace tensorcast::global_store {

Liveness LivenessOf(const Liveness& small, size_t nodes) {
  // The fleet's heartbeats a second at the configured interval, as a multiple of what the store takes.
  const double factor = static_cast<double>(nodes) /
                        (kMaxHeartbeatsPerSecond * absl::ToDoubleSeconds(small.heartbeat_interval));
  if (factor <= 1) return small;
  return {.heartbeat_interval = factor * small.heartbeat_interval, .node_ttl = factor * small.node_ttl};
}

}  // namespace tensorcast::global_store
