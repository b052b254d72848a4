// The reference for transfers over links: bytes over one plain TCP connection between two hosts of a Network,
// from memory to memory, without verification.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "tools/workshop/cluster/network.h"

namespace tensorcast::bench {

// The time from the first sent byte to the last received one. Blocks; ends early with the context.
absl::StatusOr<absl::Duration> CopyOverLink(const RequestContext& context, const Network& network, int from,
                                            int to, uint64_t bytes);

}  // namespace tensorcast::bench
