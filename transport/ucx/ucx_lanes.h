// The two lanes of UCX, as transport/lanes lists them, and where they listen.
//
// They are for RDMA fabrics, and a node has them only where its configuration asks for them and says that the
// fabric is trusted: UCX authenticates no peer, and over TCP crafted bytes write to the process's memory
// (README.md). `ucx_over_tcp` is what tests and comparisons set.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "transport/lane.h"

namespace tensorcast::transport {

Lane UcxMessagesLane();  // "ucx"
Lane UcxRmaLane();       // "ucx-rma"

// Each of the two introduces itself on a port of its own; both share the data ports. All are 0, any, where
// the port of `ucx_listen` is and no data ports are configured.
struct UcxPorts {
  std::string messages_listen;  // host:port
  std::string rma_listen;
  Ports data;
};

// INVALID_ARGUMENT when they do not fit beside each other. REQUIRES: `ucx_listen` is not empty.
absl::StatusOr<UcxPorts> UcxPortsOf(const LaneConfig& config);

}  // namespace tensorcast::transport
