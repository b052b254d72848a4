#include "cli/commands/server_options.h"

#include <grp.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/address.h"
#include "base/labels.h"
#include "base/posix/socket_folders.h"
#include "base/posix/state_files.h"
#include "base/status.h"
#include "base/units.h"
#include "cli/config/config.h"
#include "core/ingest/device_verification.h"
#include "transport/lanes/lanes.h"

namespace tensorcast::cli {
namespace {

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

// The host that peers know this one by, for a data plane that listens on every interface; empty when not
// configured.
std::string AdvertisedHost(const v1::DaemonConfig& config) {
  const absl::StatusOr<HostPort> address = ParseHostPort(config.advertise());
  return address.ok() ? address->host : "";
}

absl::Status FillLanes(const v1::Config& config, daemon::DaemonOptions& options) {
  TC_ASSIGN_OR_RETURN(options.lane_config, ToLaneConfig(config));
  for (const transport::Lane& lane : transport::Lanes()) {
    if (options.keeper.empty() || !lane.pins_pool || !lane.configured(options.lane_config)) continue;
    return absl::InvalidArgumentError(absl::StrCat("daemon.keep_pool: keeper goes without ", lane.listen_key,
                                                   ": a network card keeps the pages that it registered, "
                                                   "also of a segment that another one took the place "
                                                   "of; unset one of them"));
  }
  std::set<std::string_view> missing;
  for (const std::string& name : config.daemon().lanes()) {
    const transport::Lane* lane = transport::FindLane(name);
    if (lane == nullptr || lane->configured(options.lane_config)) {
      options.lanes.push_back(name);
    } else {
      missing.insert(lane->listen_key);
    }
  }
  LOG_IF(INFO, options.lanes.empty() && !missing.empty())
      << "no data plane to other hosts: no address to listen on is set (" << absl::StrJoin(missing, ", ")
      << ")";
  return absl::OkStatus();
}

absl::Status FillDevices(const v1::DaemonConfig& config, daemon::DaemonOptions& options) {
  options.device_runtime = config.device_runtime();
  options.device_verification = ParseDeviceVerification(config.device_verification()).value();
  if (config.nccl() != "off") {
    options.broadcast_helper = {"tensorcast", "nccl-helper"};
    options.nccl_named = config.nccl() != "auto";
    if (options.nccl_named) options.broadcast_helper.push_back(absl::StrCat("--library=", config.nccl()));
  }
  options.fake_devices = config.fake_devices();
  TC_ASSIGN_OR_RETURN(options.fake_device_bytes,
                      Size("daemon.fake_device_memory", config.fake_device_memory()));
  if (config.device_pool().empty()) return absl::OkStatus();
  TC_ASSIGN_OR_RETURN(options.device_pool_bytes, Size("daemon.device_pool", config.device_pool()));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<gid_t>> GroupIds(const v1::DaemonConfig& config) {
  std::vector<gid_t> ids;
  for (const std::string& name : config.handle_groups()) {
    const group* found = getgrnam(name.c_str());
    if (found == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("daemon.handle_groups names \"", name, "\", which is not a group here"));
    }
    ids.push_back(found->gr_gid);
  }
  return ids;
}

absl::StatusOr<Labels> ToLabels(const v1::DaemonConfig& config) {
  absl::StatusOr<Labels> labels = ParseLabels({config.labels().begin(), config.labels().end()});
  if (!labels.ok()) return Annotate(labels.status(), "daemon.labels");
  return labels;
}

absl::Status FillSizes(const v1::DaemonConfig& config, daemon::DaemonOptions& options) {
  TC_ASSIGN_OR_RETURN(options.host_pool_bytes, Size("daemon.host_pool", config.host_pool()));
  TC_ASSIGN_OR_RETURN(options.peer_timeout, Interval("daemon.peer_timeout", config.peer_timeout()));
  options.huge_pages = config.huge_pages();
  TC_ASSIGN_OR_RETURN(const absl::Duration keep_for,
                      Interval("daemon.keep_pool_for", config.keep_pool_for()));
  if (config.keep_pool() == "keeper") {
    options.keeper = {"tensorcast", "keeper", absl::StrCat("--linger=", DurationText(keep_for))};
  }
  options.max_concurrent_ingests = config.max_concurrent_ingests();
  options.max_connections = config.max_connections();
  TC_ASSIGN_OR_RETURN(options.put_rings_bytes, Size("daemon.put_rings", config.put_rings()));
  TC_ASSIGN_OR_RETURN(options.compare_rate, Size("daemon.compare_rate", config.compare_rate()));
  options.copy_threads = config.copy_threads();
  options.staging_buffers = config.staging_buffers();
  return absl::OkStatus();
}

absl::Status FillNames(const v1::DaemonConfig& config, daemon::DaemonOptions& options) {
  options.name = config.name();
  options.listen = config.listen();
  options.advertise = config.advertise();
  const DaemonSockets sockets = SocketsOf(config);
  options.unix_socket = sockets.operators;
  options.client_socket = sockets.clients;
  options.handle_socket = sockets.handles;
  options.state_dir = config.state_dir();
  options.disk_dir = config.disk_dir();
  options.global_store = config.global_store();
  options.host_id = config.host_id();
  options.local_lane = config.local_lane();
  options.import_roots.assign(config.import_roots().begin(), config.import_roots().end());
  TC_ASSIGN_OR_RETURN(options.labels, ToLabels(config));
  TC_ASSIGN_OR_RETURN(options.handle_groups, GroupIds(config));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const rpc::Credentials>> LoadCredentials(const v1::SecurityConfig& config) {
  if (config.ca().empty() && config.certificate().empty() && config.key().empty()) return nullptr;
  TC_ASSIGN_OR_RETURN(std::shared_ptr<security::Identity> identity,
                      security::Identity::Load({.ca = config.ca(),
                                                .certificate = config.certificate(),
                                                .key = config.key(),
                                                .denied = config.denied(),
                                                .trust_domain = config.trust_domain()}));
  return std::make_shared<const rpc::Credentials>(std::move(identity));
}

absl::StatusOr<security::KeyRules> ToKeyRules(const v1::SecurityConfig& config) {
  absl::StatusOr<security::KeyRules> rules =
      security::KeyRules::Parse(std::vector<std::string>(config.keys().begin(), config.keys().end()));
  if (!rules.ok()) return Annotate(rules.status(), "security.keys");
  return rules;
}

absl::Status MakeMetadataPrivate(const std::string& metadata_path) {
  const std::filesystem::path path = metadata_path;
  if (const auto folder = path.parent_path(); !folder.empty()) {
    TC_RETURN_IF_ERROR(Annotate(MakePrivateFolder(folder.string(), path.filename().string()),
                                "the folder of global_store.metadata_path"));
  }
  return Annotate(MakePrivateFile(metadata_path), "global_store.metadata_path");
}

absl::StatusOr<global_store::EtcdOptions> ToEtcdOptions(const v1::GlobalStoreConfig& whole) {
  global_store::EtcdOptions options;
  const v1::EtcdConfig& config = whole.etcd();
  options.client = {.endpoints = {config.endpoints().begin(), config.endpoints().end()},
                    .ca = config.ca(),
                    .certificate = config.certificate(),
                    .key = config.key(),
                    .user = config.user()};
  if (!config.password_file().empty()) {
    std::ifstream file(config.password_file());
    if (!std::getline(file, options.client.password)) {
      return absl::InvalidArgumentError(
          absl::StrCat("global_store.etcd.password_file: ", config.password_file(), " cannot be read"));
    }
  }
  options.leadership = {.prefix = config.prefix(), .name = whole.listen(), .address = whole.listen()};
  TC_ASSIGN_OR_RETURN(options.leadership.ttl, Interval("global_store.etcd.lease", config.lease()));
  TC_ASSIGN_OR_RETURN(options.quota_bytes, Size("global_store.etcd.quota", config.quota()));
  return options;
}

absl::StatusOr<global_store::GlobalStoreOptions> ToGlobalStoreOptions(const v1::GlobalStoreConfig& config) {
  global_store::GlobalStoreOptions options;
  options.listen = config.listen();
  options.metadata_store = config.metadata_store();
  options.metadata_path = config.metadata_path();
  options.max_connections = config.max_connections();
  if (options.metadata_store == "etcd") {
    TC_ASSIGN_OR_RETURN(options.etcd, ToEtcdOptions(config));
  }
  absl::StatusOr<global_store::Retention> retention = global_store::Retention::Parse(
      config.keep_versions(),
      {config.keep_versions_by_prefix().begin(), config.keep_versions_by_prefix().end()});
  if (!retention.ok()) return Annotate(retention.status(), "global_store.keep_versions_by_prefix");
  options.retention = *std::move(retention);
  TC_ASSIGN_OR_RETURN(options.broadcast_min_bytes,
                      Size("global_store.broadcast_min_bytes", config.broadcast_min_bytes()));
  TC_ASSIGN_OR_RETURN(options.heartbeat_interval,
                      Interval("global_store.heartbeat_interval", config.heartbeat_interval()));
  TC_ASSIGN_OR_RETURN(options.node_ttl, Interval("global_store.node_ttl", config.node_ttl()));
  TC_ASSIGN_OR_RETURN(options.grant_ttl, Interval("global_store.grant_ttl", config.grant_ttl()));
  return options;
}

DaemonSockets SocketsOf(const v1::DaemonConfig& config) {
  const std::string folder = SocketFolderOf(config.state_dir());
  const auto path = [&folder](const std::string& configured, std::string_view name) {
    return configured.empty() ? absl::StrCat(folder, "/", name) : configured;
  };
  return {.operators = path(config.unix_socket(), kOperatorSocket),
          .clients = path(config.client_socket(), kClientSocket),
          .handles = path(config.handle_socket(), kHandleSocket)};
}

absl::StatusOr<daemon::DaemonOptions> ToDaemonOptions(const v1::Config& config) {
  daemon::DaemonOptions options;
  TC_RETURN_IF_ERROR(FillNames(config.daemon(), options));
  TC_RETURN_IF_ERROR(FillSizes(config.daemon(), options));
  TC_RETURN_IF_ERROR(FillDevices(config.daemon(), options));
  TC_RETURN_IF_ERROR(FillLanes(config, options));
  return options;
}

absl::StatusOr<transport::LaneConfig> ToLaneConfig(const v1::Config& whole) {
  const v1::DaemonConfig& config = whole.daemon();
  transport::LaneConfig lanes{.advertise_host = AdvertisedHost(config),
                              .trusted_fabric = whole.security().trusted_fabric()};
  TC_ASSIGN_OR_RETURN(lanes.peer_timeout, Interval("daemon.peer_timeout", config.peer_timeout()));
  TC_ASSIGN_OR_RETURN(lanes.send_limit, Size("daemon.limits.send", config.limits().send()));
  TC_ASSIGN_OR_RETURN(lanes.receive_limit, Size("daemon.limits.receive", config.limits().receive()));
  for (const transport::Lane& lane : transport::Lanes()) {
    for (const std::string_view key : lane.keys)
      lanes.values[std::string(key)] = config::ValuesOf(whole, key);
  }
  return lanes;
}

absl::StatusOr<std::unique_ptr<global_store::GlobalStoreServer>> StartEmbeddedStore(
    const v1::Config& config, daemon::DaemonOptions& options) {
  const std::string& folder = config.daemon().state_dir();
  // Clients of the groups that are let in pass through it to the sockets.
  const mode_t others = config.daemon().handle_groups().empty() ? 0 : 0011;
  TC_RETURN_IF_ERROR(Annotate(MakePrivateFolder(folder, "node_id", others), "daemon.state_dir"));
  TC_ASSIGN_OR_RETURN(global_store::GlobalStoreOptions store, ToGlobalStoreOptions(config.global_store()));
  store.listen = absl::StrCat("unix:", folder, "/global-store.sock");
  store.metadata_store = "sqlite";
  store.metadata_path = folder + "/metadata.db";
  store.awaits_nodes = false;
  TC_RETURN_IF_ERROR(MakePrivateFile(store.metadata_path));
  TC_ASSIGN_OR_RETURN(std::unique_ptr<global_store::GlobalStoreServer> server,
                      global_store::GlobalStoreServer::Start(store));
  options.global_store = server->address();
  options.global_store_label = "embedded";
  return server;
}

}  // namespace tensorcast::cli
