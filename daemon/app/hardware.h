// What a node uses of its host's hardware, opened as its options say: broadcasts between GPUs, and the
// networks to other hosts.
// Stateless; thread-safe.
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

// What broadcasts between the devices by the helper process of `broadcasts`; null where there is none,
// or it would have nothing to do: fake GPUs, or fewer than three and no fabric to other nodes' that is
// trusted. `devices` must outlive it.
std::unique_ptr<DeviceBroadcaster> OpenBroadcaster(const DaemonOptions& options, DeviceRuntime* devices);

// The transports of `lanes`, in their order, with the pool registered: it and `devices` must outlive them.
// INVALID_ARGUMENT when there is no transport of a name, UNAVAILABLE when one cannot be had on this host.
using Transports = std::vector<std::unique_ptr<transport::Transport>>;
absl::StatusOr<Transports> OpenLanes(const DaemonOptions& options, DeviceRuntime* devices, HostPool& pool);

// How fast the links are over which other hosts reach this node, in Mbit/s each way: of the interfaces that
// have its advertised addresses, as their driver says below `sysfs`, but no more than the options let it
// send. 0: unknown, as on many virtual machines.
uint64_t LinkMbit(const DaemonOptions& options, const std::string& sysfs = "/sys");

}  // namespace tensorcast::daemon
