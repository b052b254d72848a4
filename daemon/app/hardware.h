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

// The broadcaster between the devices, in the helper process that `broadcasts` configures. Null if no helper
// is configured, or if a helper would have no work: the GPUs are fake, or there are fewer than three GPUs and
// no trusted fabric to the GPUs of other nodes. `devices` must outlive the broadcaster.
std::unique_ptr<DeviceBroadcaster> OpenBroadcaster(const DaemonOptions& options, DeviceRuntime* devices);

// Opens the transports of `lanes` in their order and registers the pool; `pool` and `devices` must outlive
// them. INVALID_ARGUMENT when a name is not a transport, UNAVAILABLE when a transport cannot be opened on
// this host.
using Transports = std::vector<std::unique_ptr<transport::Transport>>;
absl::StatusOr<Transports> OpenLanes(const DaemonOptions& options, DeviceRuntime* devices, HostPool& pool);

// The rate of the links over which other hosts reach this node, in Mbit/s per direction. It is the sum of the
// rates that drivers report below `sysfs` for the interfaces with the advertised addresses, capped by the
// send limit in the options. 0: unknown, as on many virtual machines.
uint64_t LinkMbit(const DaemonOptions& options, const std::string& sysfs = "/sys");

}  // namespace tensorcast::daemon
