// The two lanes of UCX, as transport/lanes lists them, and where they listen.
//
// They are for RDMA fabrics, and a node has them only where its configuration asks for them and says that the
// fabric is trusted: UCX authenticates no peer, and over TCP crafted bytes write to the process's memory
// (README.md). `ucx_over_tcp` is what tests and comparisons set.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "transport/lane.h"
#include "transport/ucx/ucx_transport.h"

namespace tensorcast::transport {

Lane UcxMessagesLane();  // "ucx"
Lane UcxRmaLane();       // "ucx-rma"

// Where the lane listens, as host:port: "ucx" on the port of `ucx_listen` and "ucx-rma" on the next one; both
// on port 0, any, where that is 0. INVALID_ARGUMENT when there is no next port. REQUIRES: `ucx_listen` is not
// empty.
absl::StatusOr<std::string> UcxListenAddress(UcxLane lane, const LaneConfig& config);

}  // namespace tensorcast::transport
