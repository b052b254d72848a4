#include "tools/workshop/cluster/local_cluster.h"

#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "base/posix/state_files.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast {
namespace {

constexpr absl::Duration kStopGrace = absl::Seconds(20);
constexpr absl::Duration kReadyPoll = absl::Milliseconds(20);

void AddSettings(std::vector<std::string>& argv, const std::vector<std::string>& settings) {
  for (const std::string& setting : settings) {
    if (!setting.starts_with("--")) argv.emplace_back("--set");
    argv.push_back(setting);
  }
}

std::vector<std::string> LaneSettings(const std::vector<std::string>& lanes) {
  std::vector<std::string> settings;
  if (std::ranges::find(lanes, "tcp") != lanes.end()) settings.push_back("daemon.tcp_listen=127.0.0.1:0");
  if (std::ranges::any_of(lanes, [](const std::string& lane) { return lane.starts_with("ucx"); })) {
    settings.insert(settings.end(), {absl::StrCat("daemon.lanes=[", absl::StrJoin(lanes, ", "), "]"),
                                     "daemon.ucx_listen=127.0.0.1:0", "security.trusted_fabric=true"});
  }
  return settings;
}

// A process of a cluster on one machine may have TCP ports; all that reach them may do everything there,
// unless it has certificates.
void AllowClearPorts(std::vector<std::string>& argv) {
  const auto any = [&](auto holds) { return std::ranges::any_of(argv, holds); };
  const bool listens = any([](const std::string& word) {
    return absl::StrContains(word, "listen=") && !absl::StrContains(word, "listen=unix:") &&
           !word.ends_with("listen=");
  });
  const bool certified = any([](const std::string& word) { return word.starts_with("security.ca="); });
  if (listens && !certified) AddSettings(argv, {"security.insecure=true"});
}

// Guards the list, and is held while folders are removed: the thread of the second signal removes all that
// there are, and must not meet a destructor half way.
absl::Mutex temporary_mutex(absl::kConstInit);

std::set<std::string>& TemporaryPaths() ABSL_EXCLUSIVE_LOCKS_REQUIRED(temporary_mutex) {
  static auto* const paths = new std::set<std::string>;
  return *paths;
}

void RemoveTree(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

// The ready line is a flat JSON object of strings.
absl::StatusOr<std::string> ReadyField(const std::string& line, const char* field) {
  const nlohmann::json ready = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!ready.is_object() || !ready.contains(field) || !ready[field].is_string()) {
    return absl::InternalError(absl::StrCat("ready line without \"", field, "\": ", line));
  }
  return ready[field].get<std::string>();
}

}  // namespace

absl::StatusOr<std::unique_ptr<TemporaryDirectory>> TemporaryDirectory::Create(std::string_view prefix) {
  const char* base = getenv("TMPDIR");
  std::string path = absl::StrCat(base != nullptr && *base != '\0' ? base : "/tmp", "/", prefix, "-XXXXXX");
  absl::MutexLock lock(&temporary_mutex);
  if (mkdtemp(path.data()) == nullptr) return ErrnoStatus(errno, "create folder", path);
  TemporaryPaths().insert(path);
  return std::unique_ptr<TemporaryDirectory>(new TemporaryDirectory(path));
}

TemporaryDirectory::~TemporaryDirectory() {
  absl::MutexLock lock(&temporary_mutex);
  RemoveTree(path_);
  TemporaryPaths().erase(path_);
}

void TemporaryDirectory::RemoveAll() {
  absl::MutexLock lock(&temporary_mutex);
  for (const std::string& path : TemporaryPaths()) RemoveTree(path);
}

LocalCluster::LocalCluster(const ClusterOptions& options)
    : options_(options),
      global_stores_(options.global_store ? std::max<size_t>(options.global_store_addresses.size(), 1) : 0),
      daemons_(options.daemons) {}

LocalCluster::~LocalCluster() { (void)Stop(kStopGrace); }

std::string LocalCluster::global_store_directory(int index) const {
  return absl::StrCat(options_.directory, "/global-store", index == 0 ? "" : absl::StrCat("-", index));
}

std::string LocalCluster::daemon_directory(int index) const {
  return absl::StrCat(options_.directory, "/node-", index);
}

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(const ClusterOptions& options) {
  std::unique_ptr<LocalCluster> cluster(new LocalCluster(options));
  TC_RETURN_IF_ERROR(cluster->StartGlobalStores());
  // All are launched before the first is waited for: they start side by side.
  for (int i = 0; i < options.daemons; ++i) TC_RETURN_IF_ERROR(cluster->LaunchDaemon(i));
  for (int i = 0; i < options.daemons; ++i) TC_RETURN_IF_ERROR(cluster->AwaitDaemon(i));
  return cluster;
}

absl::Status LocalCluster::StartGlobalStores() {
  global_store_address_ = absl::StrJoin(options_.global_store_addresses, ",");
  for (int i = 0; i < global_stores(); ++i) {
    TC_RETURN_IF_ERROR(LaunchGlobalStore(i));
    // The first one leads before the others start, so it wins the election.
    if (i == 0) TC_RETURN_IF_ERROR(AwaitGlobalStore(i));
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::LaunchGlobalStore(int index) {
  const std::string directory = global_store_directory(index);
  TC_RETURN_IF_ERROR(MakePrivateFolder(directory, "log"));
  ProcessOptions process;
  process.argv = {options_.binary, "global-store"};
  AddSettings(process.argv, {absl::StrCat("global_store.listen=unix:", directory, "/store.sock"),
                             "global_store.metadata_path=" + directory + "/metadata.db"});
  AddSettings(process.argv, options_.global_store_settings);
  if (index < static_cast<int>(options_.settings_of_global_store.size())) {
    AddSettings(process.argv, options_.settings_of_global_store[index]);
  }
  // A restart keeps the address, by which daemons know the store, also where its port was any.
  const std::string& address =
      global_stores() > 1 ? options_.global_store_addresses[index] : global_store_address_;
  if (!address.empty()) AddSettings(process.argv, {"global_store.listen=" + address});
  AllowClearPorts(process.argv);
  process.network_namespace = options_.global_store_network_namespace;
  process.environment = options_.global_store_environment;
  process.log_path = directory + "/log";
  process.ready_pipe = true;
  TC_ASSIGN_OR_RETURN(global_stores_[index].process, Process::Start(process));
  global_stores_[index].ready = false;
  return absl::OkStatus();
}

absl::Status LocalCluster::AwaitGlobalStore(int index) {
  GlobalStore& store = global_stores_[index];
  TC_ASSIGN_OR_RETURN(const std::string line, store.process->WaitReady(SteadyNow() + options_.start_timeout));
  store.ready = true;
  if (global_stores() > 1) return absl::OkStatus();
  TC_ASSIGN_OR_RETURN(global_store_address_, ReadyField(line, "grpc"));
  return absl::OkStatus();
}

absl::Status LocalCluster::RestartGlobalStore(int index) {
  TC_RETURN_IF_ERROR(LaunchGlobalStore(index));
  return global_stores() > 1 ? absl::OkStatus() : AwaitGlobalStore(index);
}

absl::Status LocalCluster::LaunchDaemon(int index) {
  const std::string directory = daemon_directory(index);
  TC_RETURN_IF_ERROR(MakePrivateFolder(directory, "log"));
  ProcessOptions process;
  process.argv = {options_.binary, "daemon"};
  AddSettings(process.argv, {absl::StrCat("daemon.name=node-", index), "daemon.state_dir=" + directory,
                             "daemon.import_roots=" + options_.directory});
  AddSettings(process.argv, LaneSettings(options_.lanes));
  // Without it each daemon has a global store of its own.
  if (options_.global_store) AddSettings(process.argv, {"daemon.global_store=" + global_store_address_});
  // Several may serve other hosts, so they want addresses that other hosts know.
  if (global_stores() > 1) AddSettings(process.argv, {"daemon.listen=127.0.0.1:0"});
  AddSettings(process.argv, options_.daemon_settings);
  if (index < static_cast<int>(options_.settings_of_daemon.size())) {
    AddSettings(process.argv, options_.settings_of_daemon[index]);
  }
  AllowClearPorts(process.argv);
  if (index < static_cast<int>(options_.network_namespaces.size())) {
    process.network_namespace = options_.network_namespaces[index];
  }
  if (index < static_cast<int>(options_.daemon_environments.size())) {
    process.environment = options_.daemon_environments[index];
  }
  // Its UCX has no RDMA devices. Without a lane of UCX the variable changes nothing.
  process.environment.emplace_back("TENSORCAST_TEST_UCX_OVER_TCP", "1");
  process.log_path = directory + "/log";
  process.ready_pipe = true;
  TC_ASSIGN_OR_RETURN(daemons_[index].process, Process::Start(process));
  return absl::OkStatus();
}

absl::Status LocalCluster::AwaitDaemon(int index) {
  Daemon& daemon = daemons_[index];
  TC_ASSIGN_OR_RETURN(const std::string line,
                      daemon.process->WaitReady(SteadyNow() + options_.start_timeout));
  TC_ASSIGN_OR_RETURN(daemon.addresses.grpc, ReadyField(line, "grpc"));
  TC_ASSIGN_OR_RETURN(daemon.addresses.unix_socket, ReadyField(line, "unix"));
  TC_ASSIGN_OR_RETURN(daemon.addresses.handle_socket, ReadyField(line, "handles"));
  return absl::OkStatus();
}

absl::Status LocalCluster::RestartDaemon(int index, const std::vector<std::string>& settings) {
  if (options_.settings_of_daemon.size() <= static_cast<size_t>(index)) {
    options_.settings_of_daemon.resize(index + 1);
  }
  // The settings are kept for later restarts, too.
  std::vector<std::string>& all = options_.settings_of_daemon[index];
  all.insert(all.end(), settings.begin(), settings.end());
  TC_RETURN_IF_ERROR(LaunchDaemon(index));
  return AwaitDaemon(index);
}

// Only a store that leads writes its ready line, so waiting for the line is waiting for the lead. A store
// keeps the lead until it ends, so the last one that became ready and still runs is the leader.
absl::Status LocalCluster::AwaitLeader(SteadyTime deadline) {
  while (true) {
    for (int i = 0; i < global_stores(); ++i) {
      GlobalStore& store = global_stores_[i];
      if (store.ready || !store.process->WaitReady(SteadyNow() + kReadyPoll).ok()) continue;
      store.ready = true;
      leader_ = i;
    }
    if (global_stores_[leader_].ready && global_store().running()) return absl::OkStatus();
    if (SteadyNow() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("none of ", global_stores(), " global stores leads; logs in ", options_.directory));
    }
  }
}

absl::Status LocalCluster::Stop(absl::Duration grace) {
  // All daemons at once: each drains on its own. A second SIGTERM would end a process without its drain.
  std::vector<std::string> problems;
  const SteadyTime deadline = SteadyNow() + grace;
  for (Daemon& daemon : daemons_) {
    if (daemon.process != nullptr && daemon.process->running()) (void)daemon.process->Signal(SIGTERM);
  }
  const auto note = [&](const Process& process, const absl::StatusOr<int>& code) {
    if (!code.ok()) {
      problems.push_back(std::string(code.status().message()));
    } else if (*code != 0) {
      problems.push_back(absl::StrCat("exit code ", *code, ", log ", process.log_path()));
    }
  };
  for (Daemon& daemon : daemons_) {
    if (daemon.process != nullptr) note(*daemon.process, daemon.process->Wait(deadline));
  }
  // After the daemons, which say goodbye to it. Of several those that stand by go before the first, which
  // leads as a rule: they would only take over from it to be stopped.
  for (auto store = global_stores_.rbegin(); store != global_stores_.rend(); ++store) {
    if (store->process != nullptr) note(*store->process, store->process->Stop(grace));
    store->process.reset();
  }
  for (Daemon& daemon : daemons_) daemon.process.reset();
  if (problems.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("processes did not stop cleanly: ", absl::StrJoin(problems, "; ")));
}

}  // namespace tensorcast
