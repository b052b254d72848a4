// Opens the hardware that the options name: the helper for broadcasts between GPUs, and the transports to
// other hosts. Stateless; thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/device/device_broadcaster.h"
#include "core/device/device_runtime.h"
#include "core/memory/host_pool.h"
#include "daemon/app/daemon_options.h"
#include "transport/transport.h"

namespace tensorcast::daemon {

// The broadcaster between the devices, in the helper process that `options.broadcasts` configures. Null if no
// helper is configured or the GPUs are fake. Also null if this node has fewer than three GPUs, unless a
// trusted fabric connects this node's GPUs to other nodes. `devices` must outlive the broadcaster.
std::unique_ptr<DeviceBroadcaster> OpenBroadcaster(const DaemonOptions& options, DeviceRuntime* devices);

// Opens the transports of `options.lanes` in that order and registers the pool with them. `pool` and
// `devices` must outlive the transports. INVALID_ARGUMENT when a name is not a transport, UNAVAILABLE when
// a transport cannot be opened on this host.
using Transports = std::vector<std::unique_ptr<transport::Transport>>;
absl::StatusOr<Transports> OpenLanes(const DaemonOptions& options, DeviceRuntime* devices, HostPool& pool);

// Returns the rate of the interfaces with the advertised addresses, in Mbit/s per direction: adds the rates
// below `sysfs`, and returns at most the send limit in the options. 0: unknown.
uint64_t LinkMbit(const DaemonOptions& options, const std::string& sysfs = "/sys");

}  // namespace tensorcast::daemon
