// The reference of what goes over links: bytes by one plain TCP connection between two hosts of a Network,
// from memory to memory, nothing looked at.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "tools/workshop/cluster/network.h"

namespace tensorcast::bench {

// From the first byte sent to the last one received. Blocks; ends early as the context says.
absl::StatusOr<absl::Duration> CopyOverLink(const RequestContext& context, const Network& network, int from,
                                            int to, uint64_t bytes);

}  // namespace tensorcast::bench
