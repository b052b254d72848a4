// How a node describes itself to the global store and to other nodes. Thread-safe.
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

// The address for other nodes to connect to. `bound`: the address on which the gRPC server listens.
// INVALID_ARGUMENT when the result would be a wildcard address.
absl::StatusOr<std::string> Advertised(const DaemonOptions& options, const std::string& bound);

}  // namespace tensorcast::daemon
