// The two lanes of UCX, as transport/lanes lists them, and where they listen.
//
// They are for RDMA fabrics, and a node has them only where its configuration asks for them and says that the
// fabric is trusted: UCX authenticates no peer, and over TCP crafted bytes write to the process's memory
// (README.md).
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "transport/lane.h"
#include "transport/ucx/ucx_transport.h"

namespace tensorcast::transport {

// The key of the address of the lane "ucx"; the next port is that of "ucx-rma". Port 0: any.
inline constexpr std::string_view kUcxListenKey = "daemon.ucx_listen";
// For tests and comparison: an environment variable that, where a daemon has it, puts UCX on TCP instead of
// RDMA. Every process that reaches its ports can then write to the daemon's memory.
inline constexpr char kUcxOverTcpVariable[] = "TENSORCAST_TEST_UCX_OVER_TCP";

Lane UcxMessagesLane();  // "ucx"
Lane UcxRmaLane();       // "ucx-rma"

// Where the lane listens, as host:port: "ucx" on the port of `listen` and "ucx-rma" on the next one; both
// on port 0, any, where that is 0. INVALID_ARGUMENT when there is no next port. REQUIRES: `listen` is not
// empty.
absl::StatusOr<std::string> UcxListenAddress(UcxLane lane, std::string_view listen);

}  // namespace tensorcast::transport
