// The two lanes of UCX, for the list in transport/lanes, and their listening addresses.
//
// They are for RDMA fabrics. A node has them only if its configuration asks for them and says that the fabric
// is trusted: UCX authenticates no peer, and over TCP crafted bytes can write to the process's memory
// (README.md).
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "transport/lane.h"
#include "transport/ucx/ucx_transport.h"

namespace tensorcast::transport {

// The configuration key of the address of lane "ucx". Lane "ucx-rma" listens on the next port. Port 0: each
// takes a free port.
inline constexpr std::string_view kUcxListenKey = "daemon.ucx_listen";
// For tests and comparison: a daemon with this environment variable runs UCX over TCP instead of RDMA. Every
// process that reaches its ports can then write to the daemon's memory.
inline constexpr char kUcxOverTcpVariable[] = "TENSORCAST_TEST_UCX_OVER_TCP";

Lane UcxMessagesLane();  // "ucx"
Lane UcxRmaLane();       // "ucx-rma"

// The lane's listening address, as host:port: "ucx" takes the port of `listen`, "ucx-rma" the next one. If
// the port is 0 (any), so is the result's. INVALID_ARGUMENT if there is no next port. REQUIRES: `listen` is
// not empty.
absl::StatusOr<std::string> UcxListenAddress(UcxLane lane, std::string_view listen);

}  // namespace tensorcast::transport
