// How a node describes itself to the global store and to other nodes. Pure functions, except FillDefaults,
// which asks the host for its name and working folder. Thread-safe.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/device/device_runtime.h"
#include "daemon/app/daemon_options.h"
#include "daemon/app/hardware.h"
#include "daemon/node/node_state.h"
#include "proto/types.pb.h"

namespace tensorcast::daemon {

// Sets the empty options to their defaults, and makes the socket paths absolute.
void FillDefaults(DaemonOptions& options);

// The node as it registers, without its address.
v1::Node DescribeNode(const DaemonOptions& options, const NodeState& state, const DeviceRuntime& devices,
                      const Transports& transports);

// The address for other nodes to connect to. The gRPC server listens on `bound`; if that is a unix socket,
// only this host reaches the address. INVALID_ARGUMENT when the server listens on a wildcard address and the
// options advertise no other address.
absl::StatusOr<std::string> Advertised(const DaemonOptions& options, const std::string& bound);

}  // namespace tensorcast::daemon
