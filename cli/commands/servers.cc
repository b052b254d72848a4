// The two servers as commands: start, report readiness, serve until SIGTERM or SIGINT, drain.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/address.h"
#include "base/posix/process_limits.h"
#include "base/posix/socket_folders.h"
#include "base/posix/state_files.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "cli/commands/command.h"
#include "cli/commands/server_options.h"
#include "cli/commands/telemetry.h"
#include "cli/config/config.h"
#include "cli/config/secrets.h"
#include "core/memory/host_pool.h"
#include "daemon/app/daemon_server.h"
#include "daemon/app/node_description.h"
#include "daemon/node/node_state.h"
#include "global_store/app/global_store_server.h"

namespace tensorcast::cli {
namespace {

struct ServerFlags {
  int ready_fd = -1;
};

struct DaemonFlags : ServerFlags {
  bool discard_kept = false;
};

void AddFlags(Flags& flags, ServerFlags& values) {
  flags.Add("--ready-fd", values.ready_fd,
            "File descriptor to which the server writes one JSON line with its addresses once it is ready");
}

void AddDaemonFlags(Flags& flags, DaemonFlags& values) {
  AddFlags(flags, values);
  flags.Add("--discard-kept", values.discard_kept,
            "Start even if daemon.host_pool has no room for all replicas that the keeper holds\n"
            "(daemon.keep_pool: keeper), and discard the replicas that do not fit");
}

constexpr absl::Duration kDrain = absl::Seconds(15);
// The minimum of descriptors and threads that a server needs to start. MeetLimits raises the soft limit of
// descriptors first; a hard limit below these is refused at the start and not found under load.
constexpr int kStoreDescriptors = 64;
constexpr int kStoreThreads = 80;  // 64 for calls, and the libraries'
constexpr int kDaemonDescriptors = 128;
constexpr int kKeptDescriptors = 64;  // more where a keeper has the pool; and one a replica in it
constexpr int kDaemonThreads = 640;   // 576 for calls (daemon/app), and the libraries'
constexpr absl::Duration kRegistration = absl::Seconds(5);
constexpr absl::Duration kLook = absl::Milliseconds(50);  // how soon a signal ends the wait for that

// One line of JSON for the process that started this one and waits for it.
absl::Status TellReady(int fd, const nlohmann::json& addresses) {
  LOG(INFO) << "serving: " << addresses.dump();
  if (fd < 0) return absl::OkStatus();
  const std::string line = addresses.dump() + "\n";
  const ssize_t written = write(fd, line.data(), line.size());
  const int error = errno;
  // The descriptor is for this one line. Closing it may change errno.
  close(fd);
  return written == static_cast<ssize_t>(line.size()) ? absl::OkStatus()
                                                      : ErrnoStatus(error, "write to", "--ready-fd");
}

// OK as well where a signal says that it does not matter any more.
absl::Status AwaitRegistration(daemon::DaemonServer& daemon) {
  const SteadyTime deadline = SteadyNow() + kRegistration;
  absl::Status registered;
  do {
    // In short waits: a signal does not wake the wait for the registration.
    registered = daemon.WaitRegistered(std::min(deadline, SteadyNow() + kLook));
  } while (!registered.ok() && SteadyNow() < deadline && !OnTerminationSignal().IsCancelled());
  return OnTerminationSignal().IsCancelled() ? absl::OkStatus() : registered;
}

// Until SIGTERM or SIGINT (OK), or the server says that it cannot go on (why).
class Termination {
 public:
  Termination() : registration_(OnTerminationSignal().OnCancel([this] { Demand(absl::OkStatus()); })) {}

  void Demand(const absl::Status& why) {
    absl::MutexLock lock(&mutex_);
    // The first reason counts: a signal after a lost leadership does not turn the exit code into success.
    if (!why_.has_value()) why_ = why;
  }
  absl::Status Wait() {
    absl::MutexLock lock(&mutex_);
    const auto demanded = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return why_.has_value(); };
    mutex_.Await(absl::Condition(&demanded));
    LOG(INFO) << "stopping: draining for at most " << kDrain;
    return *why_;
  }

 private:
  absl::Mutex mutex_;
  std::optional<absl::Status> why_ ABSL_GUARDED_BY(mutex_);
  const Cancellation::Registration registration_;
};

// The folder of a unix socket, where there is none yet; one that is there stays as it is.
absl::Status MakeSocketFolder(std::string_view key, const std::string& path, mode_t others) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  if (folder.empty() || std::filesystem::exists(folder, ignored)) return absl::OkStatus();
  return Annotate(MakePrivateFolder(folder.string(), "", others), absl::StrCat("the folder of ", key));
}

absl::Status MakeSocketFolders(const daemon::DaemonOptions& options) {
  // Clients of the groups that are let in pass through them.
  const mode_t others = options.handle_groups.empty() ? 0 : 0011;
  const bool is_default =
      options.unix_socket.empty() || options.client_socket.empty() || options.handle_socket.empty();
  // The daemon makes its state folder itself.
  if (const std::string folder = SocketFolderOf(options.state_dir);
      is_default && folder != options.state_dir) {
    TC_RETURN_IF_ERROR(Annotate(MakePrivateFolder(folder, kOperatorSocket, others),
                                "the default folder of daemon.unix_socket"));
  }
  TC_RETURN_IF_ERROR(MakeSocketFolder("daemon.unix_socket", options.unix_socket, others));
  TC_RETURN_IF_ERROR(MakeSocketFolder("daemon.client_socket", options.client_socket, others));
  return MakeSocketFolder("daemon.handle_socket", options.handle_socket, others);
}

// Before what serves is made: it looks at the limits as they are then.
absl::Status MeetLimits() {
  ExitWhenOutOfMemory();
  return RaiseDescriptorLimit();
}

rpc::ProcessFacts FactsOf(std::string role, const v1::Config& config) {
  return {.role = std::move(role),
          .version = TENSORCAST_VERSION,
          .configuration = config::ToYaml(config::WithoutSecrets(config))};
}

void RemoveSocketWhenTerminatedAgain(const std::string& address) {
  if (IsUnixAddress(address)) RemoveWhenTerminatedAgain(SocketPath(address));
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unnamed";
}

// The global store as telemetry names it: a host and the address that it listens on are one store for good.
otel::ResourceAttributes StoreResource(const CommonFlags& common) {
  const absl::StatusOr<v1::Config> config = LoadConfig(common);
  if (!config.ok()) return {};
  const std::string host = HostName();
  return {{"service.instance.id", absl::StrCat(host, "/", config->global_store().listen())},
          {"tc.node.name", host}};
}

// The daemon as telemetry names it: by the node's id, which is made here at the first start. Where something
// is wrong with the configuration or the state folder, the start says so next.
otel::ResourceAttributes DaemonResource(const CommonFlags& common) {
  const absl::StatusOr<v1::Config> config = LoadConfig(common);
  if (!config.ok() || !config->observability().otel().enabled()) return {};
  absl::StatusOr<ServerOptions> servers = ReadServerOptions(*config, Roles::kDaemon);
  if (!servers.ok()) return {};
  daemon::DaemonOptions& options = servers->daemon;
  daemon::FillDefaults(options);
  otel::ResourceAttributes resource{{"tc.node.name", options.name}};
  for (const char* label : {"zone", "rack"}) {
    const auto place = options.labels.find(label);
    if (place != options.labels.end()) resource.emplace_back(absl::StrCat("tc.", label), place->second);
  }
  const mode_t others = options.handle_groups.empty() ? 0 : 0011;
  if (!MakePrivateFolder(options.state_dir, "node_id", others).ok()) return resource;
  absl::StatusOr<std::string> node_id = daemon::NodeState::NodeId(options.state_dir);
  if (node_id.ok()) resource.emplace_back("service.instance.id", *std::move(node_id));
  return resource;
}

// A store on etcd may wait in Start for hours, as a standby. It listens, and tells its readiness, only once
// it leads.
absl::Status ServeGlobalStore(const CommonFlags& common, const ServerFlags& flags) {
  TC_RETURN_IF_ERROR(MeetLimits());
  TC_RETURN_IF_ERROR(CheckProcessLimits(
      {.who = "a global store", .descriptors = kStoreDescriptors, .threads = kStoreThreads}));
  TC_ASSIGN_OR_RETURN(const v1::Config config, LoadConfig(common));
  TC_ASSIGN_OR_RETURN(ServerOptions servers, ReadServerOptions(config, Roles::kGlobalStore));
  ApplyLogConfig(config.log());
  global_store::GlobalStoreOptions& options = servers.store;
  options.process = FactsOf("global-store", config);
  options.security.Log();
  if (options.metadata_store == "sqlite") TC_RETURN_IF_ERROR(MakeMetadataPrivate(options.metadata_path));
  TC_RETURN_IF_ERROR(MakeSocketFolder("global_store.listen", SocketPath(options.listen), /*others=*/0));
  Termination termination;  // outlives the server, which may demand it
  // A global store that stands by waits here, in Start, until it leads or a signal ends the wait.
  options.etcd.stop_waiting = OnTerminationSignal();
  // A store that lost its leadership must not go on, since another one changes the metadata from then on. It
  // ends, and its supervisor starts it again to stand by.
  options.etcd.on_lost = [&termination](const absl::Status& why) { termination.Demand(why); };
  absl::StatusOr<std::unique_ptr<global_store::GlobalStoreServer>> started =
      global_store::GlobalStoreServer::Start(options);
  // A signal ended the wait for leadership, and nothing was begun that has to be drained.
  if (absl::IsCancelled(started.status())) return absl::OkStatus();
  TC_ASSIGN_OR_RETURN(const auto server, std::move(started));
  RemoveSocketWhenTerminatedAgain(server->address());
  TC_RETURN_IF_ERROR(TellReady(flags.ready_fd, {{"grpc", server->address()}}));
  const absl::Status why = termination.Wait();
  server->Shutdown(kDrain);
  return why;
}

// The order of a start: limits, configuration, socket folders, the embedded store where there is one, the
// daemon, the registration, and the line on --ready-fd. A parent that reads this line may connect at once.
// The end runs backwards: the daemon drains, then the embedded store goes, which the daemon still reports to.
absl::Status ServeDaemon(const CommonFlags& common, const DaemonFlags& flags) {
  TC_RETURN_IF_ERROR(MeetLimits());
  TC_ASSIGN_OR_RETURN(const v1::Config config, LoadConfig(common));
  TC_ASSIGN_OR_RETURN(ServerOptions servers, ReadServerOptions(config, Roles::kDaemon));
  ApplyLogConfig(config.log());
  daemon::DaemonOptions& options = servers.daemon;
  options.process = FactsOf("daemon", config);
  TC_RETURN_IF_ERROR(MakeSocketFolders(options));
  options.security.Log();
  options.keeper.discard_kept = flags.discard_kept;
  // Each segment of the pool is a descriptor. The bound keeps the sum an int; a pool of more segments fails
  // at the limits of memory.
  int segments = static_cast<int>(std::min(options.pool.bytes / kSegmentBytes, uint64_t{1} << 20));
  // The keeper takes one more for each segment, and a small pool has several.
  if (options.keeper.on()) segments = 2 * segments + kKeptDescriptors;
  TC_RETURN_IF_ERROR(CheckProcessLimits({.who = "a daemon",
                                         .descriptors = kDaemonDescriptors + segments,
                                         .threads = kDaemonThreads,
                                         .memory_bytes = options.pool.bytes}));
  std::unique_ptr<global_store::GlobalStoreServer> embedded;
  // Making the pool may take long, so a signal that came before is looked at first.
  if (OnTerminationSignal().IsCancelled()) return absl::OkStatus();
  if (options.global_store.empty()) {
    TC_ASSIGN_OR_RETURN(embedded, StartEmbeddedStore(servers));
  }
  Termination termination;  // outlives the daemon, which may demand it
  options.on_replaced = [&termination](const absl::Status& why) { termination.Demand(why); };
  TC_ASSIGN_OR_RETURN(const auto daemon, daemon::DaemonServer::Start(std::move(options)));
  // A second signal ends the process without any destructor. The sockets would stay behind, so they are named
  // to the signal handler as soon as they exist.
  for (const std::string& address : daemon->addresses()) RemoveSocketWhenTerminatedAgain(address);
  RemoveWhenTerminatedAgain(daemon->client_socket());
  RemoveWhenTerminatedAgain(daemon->handle_socket());
  // A global store that is away is not a reason not to serve: what this node holds can still be attached to.
  if (const absl::Status registered = AwaitRegistration(*daemon); !registered.ok()) {
    LOG(WARNING) << "serving without the global store for now: " << registered.message();
  }
  TC_RETURN_IF_ERROR(TellReady(flags.ready_fd, {{"grpc", daemon->addresses().front()},
                                                {"unix", daemon->addresses().back()},
                                                {"client", "unix:" + daemon->client_socket()},
                                                {"handles", daemon->handle_socket()}}));
  const absl::Status why = termination.Wait();
  daemon->Shutdown(SteadyNow() + kDrain);
  return why;
}

// Runs a server. The exit code is 1 for whatever ended it but SIGTERM or SIGINT, which are how it is told to.
template <class Values, absl::Status (*serve)(const CommonFlags& common, const Values& flags)>
int RunServer(const CommonFlags& common, const Values& flags) {
  const absl::Status status = serve(common, flags);
  return status.ok() ? 0 : (Fail(status), 1);
}

}  // namespace

Command GlobalStoreCommand() {
  return {.name = "global-store",
          .help =
              "Run the global store, which records what exists and where, and decides which node may\n"
              "pull from which",
          .role = Role::kServer,
          .resource = StoreResource,
          .config_section = "global_store",
          .bind = Bind(AddFlags, RunServer<ServerFlags, ServeGlobalStore>)};
}

Command DaemonCommand() {
  return {.name = "daemon",
          .help = "Run this host's store daemon",
          .role = Role::kServer,
          .resource = DaemonResource,
          .config_section = "daemon",
          .bind = Bind(AddDaemonFlags, RunServer<DaemonFlags, ServeDaemon>)};
}

}  // namespace tensorcast::cli
