// The two lanes of UCX, for the list in transport/lanes, and their listening addresses.
//
// They are for RDMA fabrics. A node has them only if its configuration sets kUcxListenKey and declares the
// fabric trusted, because UCX authenticates no peer. Over TCP, crafted bytes can even write to the process's
// memory (README.md).
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
// For tests and comparison: a daemon with this environment variable runs UCX over TCP instead of RDMA. Every
// process that reaches its ports can then write to the daemon's memory.
inline constexpr char kUcxOverTcpVariable[] = "TENSORCAST_TEST_UCX_OVER_TCP";

Lane UcxMessagesLane();  // "ucx"
Lane UcxRmaLane();       // "ucx-rma"

// The lane's listening address, as host:port: for "ucx" the port of `listen`, for "ucx-rma" the next one.
// Port 0 (any) stays 0 for both. INVALID_ARGUMENT if `listen` is malformed, or its port is 65535, which
// leaves no next port.
absl::StatusOr<std::string> UcxListenAddress(UcxLane lane, std::string_view listen);

}  // namespace tensorcast::transport
