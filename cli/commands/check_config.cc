#include "cli/commands/check_config.h"

#include <grp.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/address.h"
#include "base/labels.h"
#include "base/posix/socket_folders.h"
#include "base/posix/state_files.h"
#include "base/posix/unique_fd.h"
#include "base/units.h"
#include "cli/commands/server_options.h"
#include "cli/config/config.h"
#include "core/device/device_runtime.h"
#include "core/memory/host_limits.h"
#include "core/memory/host_pool.h"
#include "daemon/app/daemon_options.h"
#include "otel/sdk/options.h"
#include "transport/lanes/lanes.h"

namespace tensorcast::cli {
namespace {

// Gathers what is wrong, each thing once: lanes share keys.
class Findings {
 public:
  void Add(std::string_view key, std::string_view what) {
    std::string line = absl::StrCat(key, ": ", what);
    if (std::ranges::find(lines_, line) == lines_.end()) lines_.push_back(std::move(line));
  }
  void Add(std::string_view key, const absl::Status& status) {
    if (!status.ok()) Add(key, status.message());
  }
  absl::Status ToStatus() const {
    return lines_.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(lines_, "\n"));
  }

 private:
  std::vector<std::string> lines_;
};

std::string Quoted(std::string_view text) { return absl::StrCat("\"", text, "\""); }

// Whether this host has the address: a port of the kernel's choice can be bound there, whatever uses the
// configured one at the moment.
bool IsOwnAddress(const HostPort& address) {
  if (IsWildcard(address)) return true;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.host.c_str(), "0", &hints, &found) != 0) return false;
  const UniqueFd probe(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool own = probe && bind(probe.get(), found->ai_addr, found->ai_addrlen) == 0;
  freeaddrinfo(found);
  return own;
}

// What CheckSocketPath does not see: nothing but a socket is in the way. Its folder is made by a start.
void CheckSocketPlace(std::string_view key, const std::string& path, Findings& findings) {
  struct stat info;
  const int looked = lstat(path.c_str(), &info);
  if (looked == 0 && !S_ISSOCK(info.st_mode)) {
    findings.Add(key, absl::StrCat(Quoted(path), " is there and is not a socket; choose another path"));
  }
  if (looked != 0 && errno == ENOTDIR) {
    findings.Add(key, absl::StrCat(Quoted(path), " is in what is not a folder; choose another path"));
  }
}

void CheckListen(std::string_view key, const std::string& listen, Findings& findings) {
  const absl::StatusOr<HostPort> address = ParseHostPort(listen);
  if (!address.ok()) return findings.Add(key, address.status());
  if (!IsOwnAddress(*address)) {
    findings.Add(key, absl::StrCat(Quoted(listen), ": ", address->host,
                                   " is not an address of this host; listen on one that it has"));
  }
}

// A folder that a start makes when it is missing, and makes private: nothing else may be in its place, and
// no other user may write to it. `own_entry` as for MakePrivateFolder.
void CheckPrivatePlace(std::string_view key, const std::string& path, std::string_view own_entry,
                       Findings& findings) {
  std::filesystem::path existing = path;
  struct stat info;
  while (!existing.empty() && stat(existing.c_str(), &info) != 0) {
    if (errno == EACCES) {
      return findings.Add(
          key, absl::StrCat(Quoted(path), ": user ", geteuid(), " may not look at ", existing.string(),
                            "; do this as the user that is to run it, or choose another one"));
    }
    existing = existing.parent_path();
  }
  if (existing.empty()) existing = ".";
  std::error_code ignored;
  if (!std::filesystem::is_directory(existing, ignored)) {
    return findings.Add(key, absl::StrCat(Quoted(path), ": ", existing.string(), " is not a folder"));
  }
  if (existing == path) {
    if (const absl::Status usable = CheckPrivateFolder(path, own_entry); !usable.ok()) {
      return findings.Add(key, absl::StrCat(Quoted(path), ": ", usable.message()));
    }
  }
  if (access(existing.c_str(), W_OK | X_OK) != 0) {
    findings.Add(key,
                 absl::StrCat(Quoted(path), ": user ", geteuid(), " may not write to ", existing.string(),
                              "; choose another folder, give it to that user, or do this as the user "
                              "that is to run it"));
  }
}

void CheckMetadata(const v1::GlobalStoreConfig& config, Findings& findings) {
  constexpr std::string_view kKey = "global_store.metadata_path";
  const std::string& path = config.metadata_path();
  if (config.metadata_store() == "etcd" && config.etcd().endpoints().empty()) {
    findings.Add("global_store.etcd.endpoints",
                 "the etcd metadata store needs the addresses of etcd's members");
  }
  if (config.metadata_store() != "sqlite") return;
  if (path.empty()) return findings.Add(kKey, "the sqlite metadata store needs the path of its file");
  if (path == ":memory:" || absl::StartsWith(path, "file:")) {
    return findings.Add(kKey, absl::StrCat(Quoted(path),
                                           " names no file; for a store that forgets everything when it ends "
                                           "say global_store.metadata_store: memory"));
  }
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return findings.Add(kKey, absl::StrCat(Quoted(path), " is a folder; name a file in it"));
  }
  const std::filesystem::path file = path;
  if (const std::string folder = file.parent_path().string();
      !folder.empty() && path != config::Defaults().global_store().metadata_path()) {
    CheckPrivatePlace(kKey, folder, file.filename().string(), findings);
  }
}

// What holds for a global store within a daemon, too: its socket and file are in the daemon's state folder.
void CheckLifetimes(const v1::GlobalStoreConfig& config, Findings& findings) {
  const absl::StatusOr<global_store::GlobalStoreOptions> options = ToGlobalStoreOptions(config);
  if (!options.ok()) return findings.Add("global_store", options.status());
  const absl::Duration shortest = 2 * options->heartbeat_interval;
  const auto check = [&](std::string_view key, const std::string& text, absl::Duration life) {
    if (life >= shortest) return;
    findings.Add(key,
                 absl::StrCat(Quoted(text), " is less than two heartbeats (", absl::FormatDuration(shortest),
                              "), of which one may be lost; make it longer, or "
                              "global_store.heartbeat_interval shorter"));
  };
  check("global_store.node_ttl", config.node_ttl(), options->node_ttl);
  check("global_store.grant_ttl", config.grant_ttl(), options->grant_ttl);
}

void CheckGlobalStore(const v1::GlobalStoreConfig& config, Findings& findings) {
  if (IsUnixAddress(config.listen())) {
    CheckSocketPlace("global_store.listen", SocketPath(config.listen()), findings);
  } else {
    CheckListen("global_store.listen", config.listen(), findings);
  }
  CheckMetadata(config, findings);
  CheckLifetimes(config, findings);
}

// Where others come in: gRPC, and the lanes that are configured.
struct ListenEndpoint {
  std::string_view key;
  std::string listen;
  bool advertised = false;  // others are told an address that was chosen for it
};

std::vector<ListenEndpoint> ListenEndpointsOf(const v1::DaemonConfig& config,
                                              const transport::LaneConfig& lanes) {
  const bool advertised = !config.advertise().empty();
  std::vector<ListenEndpoint> endpoints = {{"daemon.listen", config.listen(), advertised}};
  for (const transport::Lane& lane : transport::Lanes()) {
    const std::string listen = lane.listen(lanes);
    if (listen.empty()) continue;
    endpoints.push_back({lane.listen_key, listen, advertised || !lanes.Values(lane.advertise_key).empty()});
  }
  return endpoints;
}

// Where others find this daemon.
void CheckReach(const v1::DaemonConfig& config, const std::vector<ListenEndpoint>& endpoints,
                Findings& findings) {
  if (config.listen().empty()) {
    if (!config.advertise().empty()) {
      findings.Add("daemon.advertise", absl::StrCat(Quoted(config.advertise()),
                                                    " is where others connect to, but nothing listens: set "
                                                    "daemon.listen"));
    }
    if (!config.global_store().empty() && !IsUnixAddress(config.global_store())) {
      findings.Add(
          "daemon.listen",
          absl::StrCat("a global store at ", config.global_store(),
                       " may serve other hosts, which reach this daemon by TCP: set daemon.listen to "
                       "host:port, or have the global store listen on a unix socket"));
    }
  } else {
    CheckListen("daemon.listen", config.listen(), findings);
  }
  const std::vector<std::string> stores = absl::StrSplit(config.global_store(), ',');
  const bool store_elsewhere = std::ranges::any_of(stores, [](const std::string& text) {
    const absl::StatusOr<HostPort> store = ParseHostPort(text);
    return store.ok() && !IsLoopback(*store) && !IsOwnAddress(*store);
  });
  for (const auto& [key, listen, advertised] : endpoints) {
    const absl::StatusOr<HostPort> address = ParseHostPort(listen);
    if (address.ok() && IsWildcard(*address) && !advertised) {
      findings.Add(key, absl::StrCat(Quoted(listen),
                                     " is every address of this host, and others need one to connect to: set "
                                     "daemon.advertise to host:port, or listen on one address"));
    }
    if (address.ok() && IsLoopback(*address) && store_elsewhere) {
      findings.Add(
          key,
          absl::StrCat(Quoted(listen), " is reached from this host only, and the global store at ",
                       config.global_store(), " tells it to others; listen on an address of the network"));
    }
  }
}

void CheckLanes(const v1::DaemonConfig& config, const transport::LaneConfig& lanes, Findings& findings) {
  std::set<std::string> seen;
  for (const std::string& lane : config.lanes()) {
    if (!seen.insert(lane).second) {
      findings.Add("daemon.lanes", absl::StrCat(Quoted(lane), " is named twice; name it once"));
    }
  }
  for (const transport::Lane& lane : transport::Lanes()) {
    const std::string listen = lane.listen(lanes);
    if (listen.empty()) continue;
    CheckListen(lane.listen_key, listen, findings);
    if (!lane.check) continue;
    for (const transport::LaneProblem& problem : lane.check(lanes)) findings.Add(problem.key, problem.what);
  }
}

void CheckSockets(const v1::DaemonConfig& config, Findings& findings) {
  if (config.global_store().empty()) {  // the socket of the global store within the daemon
    findings.Add("daemon.state_dir", CheckSocketPath(absl::StrCat(config.state_dir(), "/global-store.sock")));
  }
  const std::string folder = SocketFolderOf(config.state_dir());
  const bool in_state_folder = folder == config.state_dir();
  bool is_default = false;
  const auto check = [&](std::string_view key, const std::string& configured, const std::string& path) {
    is_default = is_default || configured.empty();
    if (!configured.empty()) return CheckSocketPlace(key, path, findings);
    findings.Add(in_state_folder ? "daemon.state_dir" : key, CheckSocketPath(path));
  };
  const auto [grpc, clients, handles] = SocketsOf(config);
  check("daemon.unix_socket", config.unix_socket(), grpc);
  check("daemon.client_socket", config.client_socket(), clients);
  check("daemon.handle_socket", config.handle_socket(), handles);
  if (is_default && !in_state_folder) {
    CheckPrivatePlace("daemon.unix_socket", folder, kOperatorSocket, findings);
  }
  if (grpc == handles || clients == handles) {
    findings.Add("daemon.handle_socket",
                 absl::StrCat(Quoted(handles), " is daemon.", grpc == handles ? "unix" : "client",
                              "_socket too; the two speak different protocols"));
  }
  if (grpc == clients) {
    findings.Add("daemon.client_socket",
                 absl::StrCat(Quoted(clients),
                              " is daemon.unix_socket too; daemon.client_socket grants the smaller role"));
  }
}

void CheckPools(const v1::DaemonConfig& config, Findings& findings) {
  const absl::StatusOr<uint64_t> pool = ParseSize(config.host_pool());
  if (!pool.ok()) return findings.Add("daemon.host_pool", pool.status());
  const daemon::DaemonOptions defaults;
  const uint64_t staging = static_cast<uint64_t>(config.staging_buffers()) * defaults.staging_buffer_bytes;
  const uint64_t serving = static_cast<uint64_t>(defaults.serving_buffers) * kGranuleBytes;
  if (*pool < staging + serving) {
    findings.Add(
        "daemon.host_pool",
        absl::StrCat(Quoted(config.host_pool()), " is less than what the daemon itself takes of it, ",
                     FormatSize(staging + serving), " with ", config.staging_buffers(),
                     " staging buffers; make it larger, or daemon.staging_buffers smaller"));
  }
  // The default is for hosts that run a daemon; where it does not fit, the start says so.
  const bool configured = config.host_pool() != config::Defaults().daemon().host_pool();
  if (configured && *pool > FreeHugePageBytes()) {
    findings.Add("daemon.host_pool", CheckFits(*pool, kSegmentBytes, /*prefaulted=*/false, ReadHostLimits()));
  }
}

void CheckDevices(const v1::DaemonConfig& config, Findings& findings) {
  if (config.device_runtime() == "cuda") findings.Add("daemon.device_runtime", CreateCudaRuntime().status());
  // That it is NCCL, and recent enough, its helper process finds out.
  if (config.nccl() != "auto" && config.nccl() != "off" && !std::filesystem::is_regular_file(config.nccl())) {
    findings.Add("daemon.nccl",
                 absl::StrCat(Quoted(config.nccl()), " is neither auto nor off, nor a file on this host"));
  }
}

void CheckAccess(const v1::DaemonConfig& config, Findings& findings) {
  for (const std::string& name : config.handle_groups()) {
    if (getgrnam(name.c_str()) == nullptr) {
      findings.Add("daemon.handle_groups",
                   absl::StrCat(Quoted(name), " is not a group here; make it, or leave it out"));
    }
  }
  for (const std::string& root : config.import_roots()) {
    std::error_code error;
    if (!std::filesystem::path(root).is_absolute() || !std::filesystem::is_directory(root, error)) {
      findings.Add("daemon.import_roots",
                   absl::StrCat(Quoted(root), " is not the absolute path of a folder on this host"));
    }
  }
}

void CheckDaemon(const v1::DaemonConfig& config, const transport::LaneConfig& lanes, Findings& findings) {
  if (config.state_dir().empty()) {
    findings.Add("daemon.state_dir", "a folder is needed; leave the key out to have the default");
  } else if (config.state_dir() != config::Defaults().daemon().state_dir()) {
    CheckPrivatePlace("daemon.state_dir", config.state_dir(), "node_id", findings);
  }
  CheckReach(config, ListenEndpointsOf(config, lanes), findings);
  CheckLanes(config, lanes, findings);
  CheckSockets(config, findings);
  CheckPools(config, findings);
  CheckDevices(config, findings);
  CheckAccess(config, findings);
  findings.Add("daemon.labels", ParseLabels({config.labels().begin(), config.labels().end()}).status());
  if (!config.disk_dir().empty()) CheckPrivatePlace("daemon.disk_dir", config.disk_dir(), "", findings);
}

// What `roles` may be started as, by the role that a certificate says.
bool Fits(security::Role role, Roles roles) {
  switch (roles) {
    case Roles::kGlobalStore:
      return role == security::Role::kGlobalStore;
    case Roles::kDaemon:
      return role == security::Role::kNode;
    case Roles::kAll:
      return role == security::Role::kGlobalStore || role == security::Role::kNode;
  }
  return false;
}

// What reaches a TCP listener; a mistake in the address is told where it is checked.
std::string_view ReachedBy(const HostPort& address) {
  return IsLoopback(address) ? "every user of this host" : "every process that reaches this port";
}

// `endpoints` are the daemon's, where one is started.
void CheckSecurity(const v1::Config& config, Roles roles, const std::vector<ListenEndpoint>& endpoints,
                   Findings& findings) {
  const v1::SecurityConfig& security = config.security();
  const absl::StatusOr<std::shared_ptr<const rpc::Credentials>> credentials = LoadCredentials(security);
  if (!credentials.ok()) return findings.Add("security", credentials.status());
  const bool certified = *credentials != nullptr;
  if (certified && !Fits((*credentials)->identity().self().name.role, roles)) {
    findings.Add(
        "security.certificate",
        absl::StrCat(Quoted(security.certificate()), " is of ",
                     (*credentials)->identity().self().name.ToString(),
                     ", and a global store is global-store, a daemon node/NAME: `tensorcast certs issue` "
                     "makes such"));
  }
  if (certified && security.insecure()) {
    findings.Add("security.insecure",
                 "with certificates no port is in clear; remove this key, or the certificates");
  }
  for (const auto& [key, value] :
       {std::pair<std::string_view, std::string_view>{"security.denied", security.denied()},
        {"security.trust_domain", security.trust_domain()}}) {
    if (certified || value.empty()) continue;
    findings.Add(key, absl::StrCat(Quoted(value),
                                   " is about certificates, and there are none: set security.ca, "
                                   "security.certificate and security.key"));
  }
  if (const absl::Status rules = ToKeyRules(security).status(); !rules.ok()) {
    findings.Add("security.keys", rules);
  } else if (!certified && !security.keys().empty()) {
    findings.Add("security.keys",
                 "the rules are about certificates, and there are none: set security.ca, "
                 "security.certificate and security.key");
  }
  const auto check = [&](std::string_view key, const std::string& listen) {
    const absl::StatusOr<HostPort> address = ParseHostPort(listen);
    if (certified || security.insecure() || !address.ok()) return;
    findings.Add(key,
                 absl::StrCat(Quoted(listen), " has no certificates, so ", ReachedBy(*address),
                              " may read, write and delete everything; set security.ca, "
                              "security.certificate and security.key, use unix sockets or, where you trust "
                              "all of these, set security.insecure: true"));
  };
  if (roles != Roles::kDaemon) check("global_store.listen", config.global_store().listen());
  for (const ListenEndpoint& endpoint : endpoints) check(endpoint.key, endpoint.listen);
}

void CheckObservability(const v1::ObservabilityConfig& config, Findings& findings) {
  // Names the key itself.
  const absl::Status otel = otel::sdk::ResolveOptions(config.otel(), "daemon").status();
  if (!otel.ok()) findings.Add("observability", otel);
  if (const std::string& file = config.trace_file(); !file.empty()) {
    const std::filesystem::path folder = std::filesystem::path(file).parent_path();
    std::error_code ignored;
    if (!folder.empty() && !std::filesystem::is_directory(folder, ignored)) {
      findings.Add("observability.trace_file",
                   absl::StrCat(Quoted(file), ": there is no folder ", folder.string(), "; make it first"));
    }
  }
}

}  // namespace

absl::Status CheckConfig(const v1::Config& config, Roles roles) {
  Findings findings;
  std::vector<ListenEndpoint> endpoints;
  if (roles != Roles::kDaemon) {
    CheckGlobalStore(config.global_store(), findings);
  } else if (config.daemon().global_store().empty()) {
    CheckLifetimes(config.global_store(), findings);
  }
  if (roles != Roles::kGlobalStore) {
    const absl::StatusOr<transport::LaneConfig> lanes = ToLaneConfig(config);
    if (!lanes.ok()) return lanes.status();
    CheckDaemon(config.daemon(), *lanes, findings);
    endpoints = ListenEndpointsOf(config.daemon(), *lanes);
  }
  CheckSecurity(config, roles, endpoints, findings);
  CheckObservability(config.observability(), findings);
  return findings.ToStatus();
}

}  // namespace tensorcast::cli
