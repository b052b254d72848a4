#include "daemon/app/hardware.h"

#include <fstream>
#include <set>
#include <string>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/address.h"
#include "base/status.h"
#include "collective/helper/helper_process.h"
#include "rpc/credentials.h"
#include "transport/lanes/lanes.h"

namespace tensorcast::daemon {
namespace {

// A broadcast needs one GPU that gives and two that take: a single receiver is as well served by a copy.
constexpr size_t kMinReceiversForBroadcast = 3;

// Lanes show the certificate that this process's servers show.
transport::LaneConfig ConfigOf(const DaemonOptions& options, DeviceRuntime* devices) {
  transport::LaneConfig config = options.lane_config;
  config.devices = devices;
  if (options.security.credentials != nullptr) {
    config.identity = {options.security.credentials, &options.security.credentials->identity()};
  }
  return config;
}

absl::StatusOr<std::unique_ptr<transport::Transport>> OpenLane(const DaemonOptions& options,
                                                               DeviceRuntime* devices,
                                                               const std::string& name) {
  if (options.make_transport) return options.make_transport(name);
  const transport::Lane* lane = transport::FindLane(name);
  if (lane == nullptr || !lane->make) {
    return absl::InvalidArgumentError(absl::StrCat("this program has no such lane; choose daemon.lanes from ",
                                                   absl::StrJoin(transport::TransportLaneNames(), ", ")));
  }
  return lane->make(ConfigOf(options, devices));
}

// "" where it cannot be told.
std::string InterfaceAt(const std::string& address) {
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok()) return "";
  const absl::StatusOr<SocketAddress> resolved = ResolveAddress(*parsed);
  return resolved.ok() ? InterfaceOf(*resolved) : "";
}

}  // namespace

std::unique_ptr<DeviceBroadcaster> OpenBroadcaster(const DaemonOptions& options, DeviceRuntime* devices) {
  // In a trusted fabric a broadcast may have its other GPUs on other nodes, so one here is enough.
  const size_t min = options.lane_config.trusted_fabric ? 1 : kMinReceiversForBroadcast;
  HelperOptions helper = options.broadcasts;
  if (helper.argv.empty() || devices->backend() != "cuda" || devices->devices().size() < min) return nullptr;
  helper.progress_timeout = options.peer_timeout;
  return std::make_unique<HelperProcess>(devices, std::move(helper));
}

absl::StatusOr<Transports> OpenLanes(const DaemonOptions& options, DeviceRuntime* devices, HostPool& pool) {
  Transports transports;
  if (options.lanes.empty()) {
    std::set<std::string_view> keys;
    for (const transport::Lane& lane : transport::Lanes()) {
      if (!lane.listen_key.empty()) keys.insert(lane.listen_key);
    }
    LOG(INFO) << "no data plane to other hosts: no address to listen on is set (" << absl::StrJoin(keys, ", ")
              << ")";
  }
  for (const std::string& name : options.lanes) {
    absl::StatusOr<std::unique_ptr<transport::Transport>> lane = OpenLane(options, devices, name);
    if (!lane.ok()) return Annotate(lane.status(), absl::StrCat("open the lane ", name));
    // The whole pool, once: replicas come and go in it, and registering memory is slow. That it is several
    // mappings side by side is nothing to a network card's registration, which goes by pages.
    TC_RETURN_IF_ERROR((*lane)->RegisterMemory(pool.base(), pool.bytes()));
    transports.push_back(*std::move(lane));
  }
  return transports;
}

// What this node can send: the speeds of the interfaces that the limited lanes advertise, each counted once,
// or the configured limit where that is less. 0: not known.
uint64_t LinkMbit(const DaemonOptions& options, const std::string& sysfs) {
  const transport::LaneConfig& lanes = options.lane_config;
  std::set<std::string> interfaces;
  for (const transport::Lane& lane : transport::Lanes()) {
    if (!lane.limited) continue;
    for (const std::string& address : lanes.Values(lane.advertise_key)) {
      interfaces.insert(InterfaceAt(address));
    }
  }
  if (interfaces.empty()) {
    interfaces.insert(InterfaceAt(options.advertise.empty() ? options.listen : options.advertise));
  }
  uint64_t mbit = 0;
  for (const std::string& interface : interfaces) {
    int64_t speed = -1;  // as the kernel says where a driver does not know
    std::ifstream(absl::StrCat(sysfs, "/class/net/", interface, "/speed")) >> speed;
    if (speed > 0) mbit += static_cast<uint64_t>(speed);
  }
  // The factor turns bytes into megabits a second.
  const uint64_t limit = lanes.send_limit * 8 / 1'000'000;
  return limit > 0 && (mbit == 0 || limit < mbit) ? limit : mbit;
}

}  // namespace tensorcast::daemon
