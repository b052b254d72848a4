// The two UCX lanes, for RDMA fabrics, and their listening addresses.
//
// A node has the UCX lanes if its configuration sets kUcxListenKey and declares the fabric trusted. The
// fabric must be trusted because UCX authenticates no peer.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "transport/lane.h"
#include "transport/ucx/ucx_transport.h"

namespace tensorcast::transport {

// The configuration key of the address of the lane "ucx". The lane "ucx-rma" listens on the next port. Port
// 0: each lane takes a free port.
inline constexpr std::string_view kUcxListenKey = "daemon.ucx_listen";
// For tests: with this environment variable a daemon runs UCX over TCP instead of RDMA. Every process that
// reaches the daemon's ports can then write to the daemon's memory (README.md).
inline constexpr char kUcxOverTcpVariable[] = "TENSORCAST_TEST_UCX_OVER_TCP";

Lane UcxMessagesLane();  // "ucx"
Lane UcxRmaLane();       // "ucx-rma"

// The lane's listening address, as host:port. "ucx" has the port of `listen`, and "ucx-rma" has the next
// port. Port 0 (any) stays 0 for both. INVALID_ARGUMENT if `listen` is malformed or has port 65535.
absl::StatusOr<std::string> UcxListenAddress(UcxLane lane, std::string_view listen);

}  // namespace tensorcast::transport
