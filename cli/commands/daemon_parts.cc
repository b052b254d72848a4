#include <grp.h>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "base/address.h"
#include "base/posix/private_files.h"
#include "base/posix/process_limits.h"
#include "base/status.h"
#include "base/units.h"
#include "cli/commands/servers.h"
#include "core/device/fake_device.h"

namespace tensorcast::cli {
namespace {

constexpr int kDaemonDescriptors = 128;
constexpr int kDaemonThreads = 640;  // 576 for calls (daemon/app), and the libraries'

absl::StatusOr<uint64_t> Size(std::string_view key, const std::string& text) {
  absl::StatusOr<uint64_t> size = ParseSize(text);
  if (!size.ok()) return Annotate(size.status(), key);
  return size;
}

absl::StatusOr<absl::Duration> Interval(std::string_view key, const std::string& text) {
  absl::StatusOr<absl::Duration> duration = ParseDuration(text);
  if (!duration.ok()) return Annotate(duration.status(), key);
  return duration;
}

absl::StatusOr<std::unique_ptr<DeviceRuntime>> OpenDevices(const v1::DaemonConfig& config) {
  const std::string& kind = config.device_runtime();
  if (kind == "none") return CreateNullRuntime();
  if (kind == "fake") {
    TC_ASSIGN_OR_RETURN(const uint64_t bytes, Size("daemon.fake_device_memory", config.fake_device_memory()));
    LOG(WARNING) << "using " << config.fake_devices()
                 << " fake GPUs, whose memory is shared memory of this host";
    return CreateFakeRuntime({.device_count = config.fake_devices(), .device_bytes = bytes});
  }
  if (kind != "auto" && kind != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("daemon.device_runtime is \"", kind, "\"; it can be auto, cuda, none or fake"));
  }
  absl::StatusOr<std::unique_ptr<DeviceRuntime>> cuda = CreateCudaRuntime();
  if (cuda.ok() || kind == "cuda") return cuda;
  LOG(INFO) << "no GPUs: " << cuda.status().message();
  return CreateNullRuntime();
}

// The host that peers know this one by, for a data plane that listens on every interface; empty when not
// configured.
std::string AdvertisedHost(const v1::DaemonConfig& config) {
  const absl::StatusOr<HostPort> address = ParseHostPort(config.advertise());
  return address.ok() ? address->host : "";
}

absl::Status FillLanes(const v1::DaemonConfig& config, daemon::DaemonOptions& options) {
  if (config.ucx_listen().empty()) {
    LOG(INFO) << "no data plane to other hosts: daemon.ucx_listen is not set";
    return absl::OkStatus();
  }
  TC_ASSIGN_OR_RETURN(const UcxPorts ports, PortsOfUcx(config));
  options.lanes.assign(config.lanes().begin(), config.lanes().end());
  options.lane_config = {.advertise_host = AdvertisedHost(config),
                         .ucx_listen = ports.messages_listen,
                         .ucx_rma_listen = ports.rma_listen,
                         .ucx_data_ports = ports.data,
                         .ucx_rma_tls = config.ucx_rma_tls()};
  return absl::OkStatus();
}

absl::StatusOr<std::vector<gid_t>> GroupIds(const v1::DaemonConfig& config) {
  std::vector<gid_t> ids;
  for (const std::string& name : config.handle_groups()) {
    const group* found = getgrnam(name.c_str());
    if (found == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("daemon.handle_groups names \"", name, "\", which is no group here"));
    }
    ids.push_back(found->gr_gid);
  }
  return ids;
}

absl::Status FillSizes(const v1::DaemonConfig& config, daemon::DaemonOptions& options) {
  TC_ASSIGN_OR_RETURN(options.host_pool_bytes, Size("daemon.host_pool", config.host_pool()));
  if (!config.device_pool().empty()) {
    TC_ASSIGN_OR_RETURN(options.device_pool_bytes, Size("daemon.device_pool", config.device_pool()));
  }
  TC_ASSIGN_OR_RETURN(options.peer_timeout, Interval("daemon.peer_timeout", config.peer_timeout()));
  options.huge_pages = config.huge_pages();
  options.max_concurrent_ingests = config.max_concurrent_ingests();
  options.max_connections = config.max_connections();
  options.copy_threads = config.copy_threads();
  options.staging_buffers = config.staging_buffers();
  return absl::OkStatus();
}

absl::Status FillNames(const v1::DaemonConfig& config, daemon::DaemonOptions& options) {
  options.name = config.name();
  options.listen = config.listen();
  options.advertise = config.advertise();
  options.unix_socket = config.unix_socket();
  options.handle_socket = config.handle_socket();
  options.state_dir = config.state_dir();
  options.disk_dir = config.disk_dir();
  options.host_id = config.host_id();
  options.local_lane = config.local_lane();
  options.import_roots.assign(config.import_roots().begin(), config.import_roots().end());
  TC_ASSIGN_OR_RETURN(options.handle_groups, GroupIds(config));
  return absl::OkStatus();
}

// A daemon alone: a global store in this process, reachable through a socket in the state folder only.
absl::Status EmbedGlobalStore(const v1::Config& config, DaemonParts& parts) {
  const std::string& folder = config.daemon().state_dir();
  // Clients of the groups that are let in pass through it to the sockets.
  const mode_t others = config.daemon().handle_groups().empty() ? 0 : 0011;
  TC_RETURN_IF_ERROR(Annotate(MakePrivateFolder(folder, "node_id", others), "daemon.state_dir"));
  TC_ASSIGN_OR_RETURN(global_store::GlobalStoreOptions options, ToGlobalStoreOptions(config.global_store()));
  options.listen = absl::StrCat("unix:", folder, "/global-store.sock");
  options.metadata_store = "sqlite";
  options.metadata_path = folder + "/metadata.db";
  options.awaits_nodes = false;
  TC_RETURN_IF_ERROR(MakePrivateFile(options.metadata_path));
  TC_ASSIGN_OR_RETURN(parts.embedded, global_store::GlobalStoreServer::Start(options));
  parts.options.global_store = parts.embedded->address();
  parts.options.global_store_label = "embedded";
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<global_store::GlobalStoreOptions> ToGlobalStoreOptions(const v1::GlobalStoreConfig& config) {
  global_store::GlobalStoreOptions options;
  options.listen = config.listen();
  options.metadata_store = config.metadata_store();
  options.metadata_path = config.metadata_path();
  options.max_connections = config.max_connections();
  TC_ASSIGN_OR_RETURN(options.heartbeat_interval,
                      Interval("global_store.heartbeat_interval", config.heartbeat_interval()));
  TC_ASSIGN_OR_RETURN(options.node_ttl, Interval("global_store.node_ttl", config.node_ttl()));
  TC_ASSIGN_OR_RETURN(options.grant_ttl, Interval("global_store.grant_ttl", config.grant_ttl()));
  return options;
}

absl::StatusOr<UcxPorts> PortsOfUcx(const v1::DaemonConfig& config) {
  constexpr uint32_t kLanes = 2;
  constexpr uint32_t kDataPorts = 8;
  TC_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(config.ucx_listen()));
  const uint32_t first = listen.port;
  const auto address = [&](uint32_t offset) {
    return FormatHostPort({listen.host, static_cast<uint16_t>(first == 0 ? 0 : first + offset)});
  };
  Ports data;
  if (!config.ucx_data_ports().empty()) {
    TC_ASSIGN_OR_RETURN(data, ParsePorts(config.ucx_data_ports()));
    if (first != 0 && data.first < first + kLanes && data.last >= first) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", config.ucx_data_ports(), "\" has the ports ", first, " and ", first + 1,
                       " in it, on which daemon.ucx_listen has the lanes ucx and ucx-rma; choose others"));
    }
  } else if (first != 0) {
    if (first + kLanes + kDataPorts - 1 > 65535) {
      return absl::InvalidArgumentError(
          absl::StrCat("is empty, and daemon.ucx_listen \"", config.ucx_listen(), "\" leaves no room for ",
                       kDataPorts, " ports from its own + ", kLanes, "; set it, or choose a lower port"));
    }
    data = {static_cast<uint16_t>(first + kLanes), static_cast<uint16_t>(first + kLanes + kDataPorts - 1)};
  }
  if (first > 65534) {
    return absl::InvalidArgumentError(absl::StrCat("daemon.ucx_listen \"", config.ucx_listen(),
                                                   "\" leaves no next port for the lane ucx-rma"));
  }
  return UcxPorts{address(0), address(1), {data.first, data.last}};
}

absl::StatusOr<DaemonParts> MakeDaemonParts(const v1::Config& config) {
  DaemonParts parts;
  TC_RETURN_IF_ERROR(FillNames(config.daemon(), parts.options));
  TC_RETURN_IF_ERROR(FillSizes(config.daemon(), parts.options));
  TC_RETURN_IF_ERROR(CheckProcessLimits({.who = "a daemon",
                                         .descriptors = kDaemonDescriptors,
                                         .threads = kDaemonThreads,
                                         .memory_bytes = parts.options.host_pool_bytes}));
  TC_ASSIGN_OR_RETURN(parts.devices, OpenDevices(config.daemon()));
  parts.options.devices = parts.devices.get();
  TC_RETURN_IF_ERROR(FillLanes(config.daemon(), parts.options));
  if (config.daemon().global_store().empty()) {
    TC_RETURN_IF_ERROR(EmbedGlobalStore(config, parts));
  } else {
    parts.options.global_store = config.daemon().global_store();
  }
  return parts;
}

}  // namespace tensorcast::cli
