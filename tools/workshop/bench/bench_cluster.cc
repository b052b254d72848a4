#include "tools/workshop/bench/bench_cluster.h"

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "tools/workshop/bench/resident.h"
#include "tools/workshop/model/llama_model.h"
#include "transport/lanes/lanes.h"

namespace tensorcast::bench {
namespace {

// Staging buffers, and the granules that rounding costs.
constexpr uint64_t kPoolExtra = 320 * kMiB;
constexpr absl::Duration kPrefaultTimeout = absl::Seconds(60);
constexpr absl::Duration kDaemonEndTimeout = absl::Seconds(20);
constexpr absl::Duration kPrefaultPoll = absl::Milliseconds(50);
constexpr int kKilled = 128 + SIGKILL;
// Of the memory that is free, the rest is for models in the page cache and for the benchmark.
constexpr double kMaxPoolShare = 0.8;
constexpr char kTrustDomain[] = "bench.tensorcast";
constexpr absl::Duration kCertificatesAreGood = absl::Hours(24);

// Pools that do not fit would end one of the processes by the kernel's hand, in the middle of a measurement.
absl::Status CheckMemory(const std::vector<uint64_t>& pools) {
  uint64_t wanted = 0;
  for (const uint64_t pool : pools) wanted += pool;
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    unsigned long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %llu kB", &kib) != 1) continue;
    const auto room = static_cast<uint64_t>(static_cast<double>(kib << 10) * kMaxPoolShare);
    if (wanted <= room) break;
    return absl::ResourceExhaustedError(
        absl::StrCat("start ", pools.size(), " daemons: their pools take ", wanted / kMiB, " MiB, and ",
                     room / kMiB, " MiB of this machine's memory are free for them; give a smaller --bytes"));
  }
  return absl::OkStatus();
}

}  // namespace

void Say(std::string_view line) {
  std::fprintf(stderr, "bench: %.*s\n", static_cast<int>(line.size()), line.data());
}

absl::StatusOr<absl::Duration> CpuTime(pid_t pid) {
  clockid_t clock{};
  timespec used{};
  const int error = clock_getcpuclockid(pid, &clock);
  if (error != 0) return ErrnoStatus(error, "find the CPU clock of process", absl::StrCat(pid));
  if (clock_gettime(clock, &used) != 0) {
    return ErrnoStatus(errno, "read the CPU clock of process", absl::StrCat(pid));
  }
  return absl::DurationFromTimespec(used);
}

absl::StatusOr<std::unique_ptr<BenchCluster>> BenchCluster::Start(const BenchOptions& bench,
                                                                  const Options& options) {
  std::unique_ptr<BenchCluster> cluster(new BenchCluster(bench.context));
  TC_ASSIGN_OR_RETURN(cluster->directory_, TemporaryDirectory::Create("tensorcast-bench"));
  cluster->pool_bytes_.assign(options.daemons, options.pool_bytes + kPoolExtra);
  for (size_t node = 0; node < options.pool_bytes_of_daemon.size(); ++node) {
    cluster->pool_bytes_[node] = options.pool_bytes_of_daemon[node] + kPoolExtra;
  }
  TC_RETURN_IF_ERROR(CheckMemory(cluster->pool_bytes_));
  ClusterOptions processes{
      .binary = bench.binary, .directory = cluster->directory(), .daemons = options.daemons, .lanes = {}};
  for (const std::string& lane : transport::TransportLaneNames()) {
    if (std::ranges::find(options.lanes, lane) != options.lanes.end()) processes.lanes.push_back(lane);
  }
  // Calls go over TCP, as between hosts and as to the servers that are measured beside them. A model may be
  // in another cluster's folder.
  processes.daemon_settings = {"daemon.device_runtime=none", "daemon.listen=127.0.0.1:0",
                               "daemon.import_roots=[/]"};
  processes.global_store_settings = {"global_store.listen=127.0.0.1:0"};
  processes.global_store_settings.insert(processes.global_store_settings.end(), options.settings.begin(),
                                         options.settings.end());
  for (const auto* settings : {&options.settings, &bench.sets}) {
    processes.daemon_settings.insert(processes.daemon_settings.end(), settings->begin(), settings->end());
  }
  processes.settings_of_daemon.resize(options.daemons);
  for (int node = 0; node < options.daemons; ++node) {
    std::vector<std::string>& own = processes.settings_of_daemon[node];
    own.push_back(absl::StrCat("daemon.host_pool=", cluster->pool_bytes_[node]));
    if (static_cast<size_t>(node) >= options.settings_of_daemon.size()) continue;
    const std::vector<std::string>& more = options.settings_of_daemon[node];
    own.insert(own.end(), more.begin(), more.end());
  }
  processes.daemon_environments.assign(options.daemons, options.environment);
  if (options.network != nullptr) options.network->Use(processes, options.daemons / options.network->nodes());
  if (options.tls) TC_RETURN_IF_ERROR(cluster->AddCertificates(processes));
  TC_ASSIGN_OR_RETURN(cluster->processes_, LocalCluster::Start(processes));
  for (int node = 0; node < options.daemons; ++node) {
    const std::string& address = cluster->processes_->addresses(node).unix_socket;
    TC_ASSIGN_OR_RETURN(auto client, client::Client::Connect({.daemon = address}));
    TC_ASSIGN_OR_RETURN(auto admin, client::AdminClient::Connect(address));
    cluster->clients_.push_back(std::move(client));
    cluster->admins_.push_back(std::move(admin));
    // A daemon touches its pool in the background after its start. First touches in the middle of a
    // measurement would slow it down.
    const absl::Status whole = cluster->AwaitPool(node, cluster->pool_bytes_[node]);
    if (!whole.ok()) return cluster->WithEndedDaemons(whole);
  }
  return cluster;
}

absl::StatusOr<security::Identity::Files> BenchCluster::Certify(std::string_view name) const {
  TC_ASSIGN_OR_RETURN(const security::AuthorityFolder::Issued issued,
                      authority_->Issue(name, security::ValidFor(kCertificatesAreGood)));
  return security::Identity::Files{.ca = authority_->files().certificate,
                                   .certificate = issued.files.certificate,
                                   .key = issued.files.key,
                                   .denied = {},
                                   .trust_domain = {}};
}

absl::Status BenchCluster::AddCertificates(ClusterOptions& processes) {
  TC_ASSIGN_OR_RETURN(authority_, security::AuthorityFolder::Make(directory() + "/certificates", kTrustDomain,
                                                                  security::ValidFor(kCertificatesAreGood)));
  const auto add = [this](std::string_view name, std::vector<std::string>& settings) -> absl::Status {
    TC_ASSIGN_OR_RETURN(const security::Identity::Files files, Certify(name));
    settings.push_back("security.ca=" + files.ca);
    settings.push_back("security.certificate=" + files.certificate);
    settings.push_back("security.key=" + files.key);
    return absl::OkStatus();
  };
  TC_RETURN_IF_ERROR(add("global-store", processes.global_store_settings));
  processes.settings_of_daemon.resize(processes.daemons);
  for (int node = 0; node < processes.daemons; ++node) {
    TC_RETURN_IF_ERROR(add(absl::StrCat("node/node-", node), processes.settings_of_daemon[node]));
  }
  processes.daemon_settings.emplace_back("daemon.ucx_listen=");  // knows no certificates
  return absl::OkStatus();
}

absl::StatusOr<std::string> BenchCluster::WriteModel(const std::string& name, uint64_t bytes, uint64_t seed) {
  const std::string path = absl::StrCat(directory(), "/", name, ".safetensors");
  Say(absl::StrCat("writing a model of about ", bytes / kMiB, " MiB"));
  TC_RETURN_IF_ERROR(WriteLlamaModel(path, {.bytes = bytes, .seed = seed, .context = context_}));
  TC_RETURN_IF_ERROR(context_.Check("bench"));
  return path;
}

absl::StatusOr<std::string> BenchCluster::ImportModel(const std::string& key, uint64_t bytes, uint64_t seed) {
  TC_ASSIGN_OR_RETURN(const std::string path, WriteModel(key, bytes, seed));
  TC_RETURN_IF_ERROR(Import(path, key));
  return path;
}

absl::Status BenchCluster::Import(const std::string& path, const std::string& key) {
  return client(0).Import(context_, path, {.key = key}).status();
}

absl::Status BenchCluster::Restart(int node) {
  TC_RETURN_IF_ERROR(processes_->daemon(node).Wait(SteadyNow() + kDaemonEndTimeout).status());
  TC_RETURN_IF_ERROR(processes_->RestartDaemon(node));
  return AwaitPool(node, pool_bytes_[node]);
}

absl::Status BenchCluster::WithEndedDaemons(const absl::Status& status) {
  std::string ended;
  for (int node = 0; node < processes_->daemons(); ++node) {
    Process& daemon = processes_->daemon(node);
    if (daemon.running()) continue;
    const absl::StatusOr<int> code = daemon.Wait(SteadyNow());
    if (!code.ok()) continue;
    absl::StrAppend(&ended, "; the daemon of node-", node, " ended with code ", *code,
                    *code == kKilled ? " (killed: perhaps this machine was out of memory)" : "",
                    ", and its log ends with: ", FileTail(daemon.log_path(), 3));
  }
  return ended.empty() ? status : absl::Status(status.code(), absl::StrCat(status.message(), ended));
}

absl::Status BenchCluster::AwaitPool(int node, uint64_t bytes) {
  const SteadyTime deadline = SteadyNow() + kPrefaultTimeout;
  while (true) {
    TC_ASSIGN_OR_RETURN(const ResidentMemory resident, ReadResidentMemory(processes_->daemon(node).pid()));
    if (resident.pools_bytes >= bytes) return absl::OkStatus();
    if (SteadyNow() > deadline) {
      Say(absl::StrCat("node-", node, " has touched ", resident.pools_bytes / kMiB, " MiB of its pool's ",
                       bytes / kMiB, ": going on, first touches will be measured too"));
      return absl::OkStatus();
    }
    TC_RETURN_IF_ERROR(context_.Check("bench"));
    absl::SleepFor(kPrefaultPoll);
  }
}

}  // namespace tensorcast::bench
