#include "daemon/app/node_description.h"

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/address.h"
#include "base/labels.h"
#include "base/status.h"
#include "rpc/credentials.h"
#include "rpc/protocol_version.h"

namespace tensorcast::daemon {
namespace {

// How the global store's scheduler knows the label.
constexpr char kLinkLabel[] = "link_mbit";

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unnamed";
}

std::string Absolute(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.string();
}

}  // namespace

void FillDefaults(DaemonOptions& options) {
  const auto fill = [](std::string& option, const std::string& value) {
    if (option.empty()) option = value;
  };
  if (options.security.credentials != nullptr) {
    fill(options.name, options.security.credentials->identity().self().name.name);
  }
  fill(options.name, HostName());
  fill(options.disk.folder, absl::StrCat(options.state_dir, "/artifacts"));
  // Told to processes with other working folders.
  const DaemonSockets sockets = options.sockets();
  options.unix_socket = Absolute(sockets.operators);
  options.client_socket = Absolute(sockets.clients);
  options.handle_socket = Absolute(sockets.handles);
  fill(options.global_store_label, options.global_store);
}

v1::Node DescribeNode(const DaemonOptions& options, const NodeState& state, const DeviceRuntime& devices,
                      const Transports& transports) {
  v1::Node node;
  node.set_node_id(state.node_id());
  node.set_name(options.name);
  node.set_incarnation(state.incarnation());
  node.set_host_id(options.host_id);
  // Without it no client attaches, and the global store grants no local lane.
  node.set_handle_socket(options.local_lane ? options.handle_socket : "");
  for (const auto& lane : transports) {
    node.add_lanes(std::string(lane->name()));
    if (lane->memory() == transport::LaneMemory::kHostAndDevice) {
      node.add_device_lanes(std::string(lane->name()));
    }
  }
  for (const DeviceInfo& info : devices.devices()) {
    v1::Device* device = node.add_devices();
    device->set_ordinal(info.ordinal);
    device->set_uuid(info.uuid);
    device->set_name(info.name);
    device->set_total_bytes(info.total_bytes);
  }
  Labels labels = options.labels;
  const uint64_t link_mbit = LinkMbit(options);
  if (link_mbit > 0) labels.emplace(kLinkLabel, absl::StrCat(link_mbit));
  // What was set comes first, also where there are as many as there may be.
  if (!CheckLabels(labels).ok()) labels = options.labels;
  node.mutable_labels()->insert(labels.begin(), labels.end());
  node.set_protocol_version(rpc::kProtocolVersion);
  return node;
}

absl::StatusOr<std::string> Advertised(const DaemonOptions& options, const std::string& bound) {
  if (IsUnixAddress(bound)) return bound;
  TC_ASSIGN_OR_RETURN(const HostPort listening, ParseHostPort(bound));
  HostPort advertised = listening;
  if (!options.advertise.empty()) {
    TC_ASSIGN_OR_RETURN(advertised, ParseHostPort(options.advertise));
    // An address without a port means the port that was bound.
    if (advertised.port == 0) advertised.port = listening.port;
  }
  if (IsWildcard(advertised)) {
    const bool is_set = !options.advertise.empty();
    return absl::InvalidArgumentError(absl::StrCat(
        "start a daemon: ", is_set ? "daemon.advertise " : "daemon.listen ",
        is_set ? options.advertise : options.listen,
        " stands for every address of this host, and other hosts need one address to connect to; set "
        "daemon.advertise to one address of this host"));
  }
  return FormatHostPort(advertised);
}

}  // namespace tensorcast::daemon
