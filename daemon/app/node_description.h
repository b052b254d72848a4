// What a node says of itself: to its configuration's reader, to the global store, and to other nodes. Pure
// functions but for FillDefaults, which asks the host for its name and working folder. Thread-safe.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/device/device_runtime.h"
#include "daemon/app/daemon_options.h"
#include "daemon/app/hardware.h"
#include "daemon/node/node_state.h"
#include "proto/types.pb.h"

namespace tensorcast::daemon {

// Fills what was left empty, and makes the paths of the sockets absolute.
void FillDefaults(DaemonOptions& options);

// The node as it is registered, but for its address.
v1::Node DescribeNode(const DaemonOptions& options, const NodeState& state, const DeviceRuntime& devices,
                      const Transports& transports);

// What others are told to connect to, where the gRPC server listens on `bound`: an address of this host alone
// where nothing else is listened on. INVALID_ARGUMENT when every address is listened on and none is
// advertised.
absl::StatusOr<std::string> Advertised(const DaemonOptions& options, const std::string& bound);

}  // namespace tensorcast::daemon
