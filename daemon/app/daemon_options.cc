#include "daemon/app/daemon_options.h"

#include <grp.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/address.h"
#include "base/posix/host_checks.h"
#include "base/posix/socket_folders.h"
#include "base/units.h"
#include "core/memory/extent.h"
#include "transport/lanes/lanes.h"

namespace tensorcast::daemon {
namespace {

std::string Quoted(std::string_view text) { return absl::StrCat("\"", text, "\""); }

// Where others come in: gRPC, and the lanes that are configured.
std::vector<rpc::ListenEndpoint> ListenEndpointsOf(const DaemonOptions& options) {
  const bool advertised = !options.advertise.empty();
  std::vector<rpc::ListenEndpoint> endpoints;
  if (!options.listen.empty()) endpoints.push_back({"daemon.listen", options.listen, advertised});
  const transport::LaneConfig& lanes = options.lane_config;
  for (const transport::Lane& lane : transport::Lanes()) {
    const std::string listen = lane.listen(lanes);
    if (listen.empty()) continue;
    endpoints.push_back({lane.listen_key, listen, advertised || !lanes.Values(lane.advertise_key).empty()});
  }
  return endpoints;
}

// Checks that others can reach this daemon where it says that they can.
void CheckReach(const DaemonOptions& options, const std::vector<rpc::ListenEndpoint>& endpoints,
                Findings& findings) {
  if (options.listen.empty()) {
    if (!options.advertise.empty()) {
      findings.Add("daemon.advertise", absl::StrCat(Quoted(options.advertise),
                                                    " is the address that other hosts connect to, but this "
                                                    "daemon does not listen; set daemon.listen"));
    }
    if (!options.global_store.empty() && !IsUnixAddress(options.global_store)) {
      findings.Add("daemon.listen",
                   absl::StrCat("a global store at ", options.global_store,
                                " may serve other hosts, which reach this daemon by TCP; set daemon.listen "
                                "to host:port, or have the global store listen on a unix socket"));
    }
  }
  // A store on another host tells this daemon's address to daemons there, for which a loopback address is
  // their own host.
  const std::vector<std::string> stores = absl::StrSplit(options.global_store, ',');
  const bool store_elsewhere = std::ranges::any_of(stores, [](const std::string& text) {
    const absl::StatusOr<HostPort> store = ParseHostPort(text);
    return store.ok() && !IsLoopback(*store) && !IsOwnAddress(*store);
  });
  for (const auto& [key, listen, advertised] : endpoints) {
    CheckListen(key, listen, findings);
    const absl::StatusOr<HostPort> address = ParseHostPort(listen);
    if (address.ok() && IsWildcard(*address) && !advertised) {
      findings.Add(key,
                   absl::StrCat(Quoted(listen),
                                " stands for every address of this host, and other hosts need one address to "
                                "connect to; set daemon.advertise to host:port, or listen on one address"));
    }
    if (address.ok() && IsLoopback(*address) && store_elsewhere) {
      findings.Add(key,
                   absl::StrCat(Quoted(listen), " is reached from this host only, and the global store at ",
                                options.global_store,
                                " tells this address to other hosts; listen on an address of the network"));
    }
  }
}

void CheckLanes(const DaemonOptions& options, Findings& findings) {
  for (const transport::Lane& lane : transport::Lanes()) {
    if (lane.listen(options.lane_config).empty()) continue;
    if (options.keeper.on() && lane.pins_pool) {
      findings.Add("daemon.keep_pool",
                   absl::StrCat("\"keeper\" cannot be combined with ", lane.listen_key,
                                ": a network card keeps the memory pages that it registered, even after the "
                                "pool has replaced the segment with these pages; unset one of the two keys"));
    }
    if (!lane.check) continue;
    for (const transport::LaneProblem& problem : lane.check(options.lane_config)) {
      findings.Add(problem.key, problem.what);
    }
  }
}

void CheckSockets(const DaemonOptions& options, Findings& findings) {
  const std::string& state_dir = options.state_dir;
  if (options.global_store.empty()) {  // the socket of the global store within the daemon
    findings.Add("daemon.state_dir", CheckSocketPath(absl::StrCat(state_dir, "/global-store.sock")));
  }
  const std::string folder = SocketFolderOf(state_dir);
  bool is_default = false;
  // A default path that does not fit is blamed on the key which moves it: the state folder's, where the
  // socket lies in that.
  const auto check = [&](std::string_view key, const std::string& configured, const std::string& path) {
    if (!configured.empty()) return CheckSocketPlace(key, path, findings);
    is_default = true;
    findings.Add(folder == state_dir ? "daemon.state_dir" : key, CheckSocketPath(path));
  };
  const auto [grpc, clients, handles] = options.sockets();
  check("daemon.unix_socket", options.unix_socket, grpc);
  check("daemon.client_socket", options.client_socket, clients);
  check("daemon.handle_socket", options.handle_socket, handles);
  // The default folder of the sockets, where it is not the state folder, must be this user's alone.
  if (is_default && folder != state_dir) {
    CheckPrivatePlace("daemon.unix_socket", folder, kOperatorSocket, findings);
  }
  if (grpc == handles || clients == handles) {
    findings.Add("daemon.handle_socket",
                 absl::StrCat(Quoted(handles), " is also daemon.", grpc == handles ? "unix" : "client",
                              "_socket, and the two sockets speak different protocols; choose another path"));
  }
  if (grpc == clients) {
    findings.Add(
        "daemon.client_socket",
        absl::StrCat(Quoted(clients),
                     " is also daemon.unix_socket, and the two sockets grant different roles; choose another "
                     "path"));
  }
}

void CheckPool(const DaemonOptions& options, Findings& findings) {
  const uint64_t bytes = options.pool.bytes;
  // What the daemon takes of the pool before any replica: the staging buffers of ingests, and the buffers
  // from which it serves replicas that are not in host memory.
  const uint64_t needed = options.engine.staging_buffers * options.engine.staging_buffer_bytes +
                          options.serving_buffers * kGranuleBytes;
  if (bytes < needed) {
    findings.Add("daemon.host_pool",
                 absl::StrCat(Quoted(FormatSize(bytes)), " is less than the ", FormatSize(needed),
                              " that the daemon's own buffers take (", options.engine.staging_buffers,
                              " of them are staging buffers); raise daemon.host_pool, or lower "
                              "daemon.staging_buffers"));
  }
}

}  // namespace

DaemonSockets DaemonOptions::sockets() const {
  const std::string folder = SocketFolderOf(state_dir);
  const auto path = [&folder](const std::string& configured, std::string_view file) {
    return configured.empty() ? absl::StrCat(folder, "/", file) : configured;
  };
  return {.operators = path(unix_socket, kOperatorSocket),
          .clients = path(client_socket, kClientSocket),
          .handles = path(handle_socket, kHandleSocket)};
}

void DaemonOptions::ReadNames(ConfigReader& config) {
  std::vector<std::string> pairs;
  config.Read("daemon.labels", pairs);
  absl::StatusOr<Labels> parsed = ParseLabels(pairs);
  config.findings().Add("daemon.labels", parsed.status());
  if (parsed.ok()) labels = *std::move(parsed);
  std::vector<std::string> groups;
  config.Read("daemon.handle_groups", groups);
  for (const std::string& group : groups) {
    if (const struct group* found = getgrnam(group.c_str()); found != nullptr) {
      handle_groups.push_back(found->gr_gid);
    } else {
      config.findings().Add(
          "daemon.handle_groups",
          absl::StrCat(Quoted(group), " is not a group of this host; create the group, or leave it out"));
    }
  }
}

void DaemonOptions::ReadLanes(ConfigReader& config) {
  // The host that peers know this one by, for a data plane that listens on every interface.
  if (const auto address = ParseHostPort(advertise); address.ok()) lane_config.advertise_host = address->host;
  config.Read("daemon.peer_timeout", lane_config.peer_timeout);
  config.Read("daemon.limits.send", lane_config.send_limit);
  config.Read("daemon.limits.receive", lane_config.receive_limit);
  config.Read("security.trusted_fabric", lane_config.trusted_fabric);
  for (const transport::Lane& lane : transport::Lanes()) {
    for (const std::string_view key : lane.keys) config.Read(key, lane_config.values[std::string(key)]);
  }
  std::vector<std::string> wanted = transport::TransportLaneNames();
  config.Read("daemon.lanes", wanted);
  std::set<std::string> seen;
  for (const std::string& lane : wanted) {
    if (seen.insert(lane).second) continue;
    config.findings().Add("daemon.lanes", absl::StrCat(Quoted(lane), " is named twice; name it once"));
  }
  // A known lane without an address to listen on is left out. An unknown one stays in the list, so that
  // OpenLanes refuses it by its name.
  std::ranges::copy_if(wanted, std::back_inserter(lanes), [this](const std::string& lane_name) {
    const transport::Lane* lane = transport::FindLane(lane_name);
    return lane == nullptr || lane->configured(lane_config);
  });
}

void DaemonOptions::Validate(Findings& findings) const {
  if (state_dir.empty()) {
    findings.Add("daemon.state_dir",
                 "the value is empty; name a folder, or leave the key out to use the default");
  } else {
    CheckPrivatePlace("daemon.state_dir", state_dir, "node_id", findings);
  }
  const std::vector<rpc::ListenEndpoint> endpoints = ListenEndpointsOf(*this);
  CheckReach(*this, endpoints, findings);
  CheckLanes(*this, findings);
  CheckSockets(*this, findings);
  CheckPool(*this, findings);
  pool.Validate(findings);
  gpus.Validate(findings);
  broadcasts.Validate(findings);
  disk.Validate(findings);
  origins.Validate(findings);
  archives.Validate(findings);
  security.Validate(endpoints, findings);
}

}  // namespace tensorcast::daemon
