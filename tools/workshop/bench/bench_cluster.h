// Shared by the benchmarks: a cluster with a client and an admin client for each daemon, a folder, a model
// file. Private to tools/workshop/bench. Thread-compatible; destroy it on the thread that made it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "client/admin.h"
#include "security/authority_folder.h"
#include "security/identity.h"
#include "tensorcast/client.h"
#include "tools/workshop/bench/bench.h"
#include "tools/workshop/cluster/local_cluster.h"
#include "tools/workshop/cluster/network.h"

namespace tensorcast::bench {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;
inline constexpr char kTcpLane[] = "tcp";

// Prints a line on stderr about the current step, since a benchmark takes minutes.
void Say(std::string_view line);

inline double GbPerSecond(uint64_t bytes, absl::Duration elapsed) {
  return static_cast<double>(bytes) / absl::ToDoubleSeconds(elapsed) / 1e9;
}

// The time that `work` takes.
template <class Work>
absl::Duration Timed(Work&& work) {
  const SteadyTime start = SteadyNow();
  work();
  return SteadyNow() - start;
}

// The CPU time of a process so far, in user and kernel mode.
absl::StatusOr<absl::Duration> CpuTime(pid_t pid);

class BenchCluster {
 public:
  struct Options {
    int daemons = 1;
    uint64_t pool_bytes = 0;            // for replicas; space for staging is added
    std::vector<std::string> settings;  // for every process
    bool tls = false;                   // each process has a certificate of the cluster's own authority
    // The measured lanes: those between hosts are opened.
    std::vector<std::string> lanes = {"tcp"};
    const Network* network = nullptr;  // its hosts run the daemons, equally many on each; null: this machine
    // For each daemon, after the common settings; may be shorter than the number of daemons.
    std::vector<std::vector<std::string>> settings_of_daemon = {};
    std::vector<uint64_t> pool_bytes_of_daemon = {};  // in place of pool_bytes
    Environment environment = {};                     // of every daemon
  };
  static absl::StatusOr<std::unique_ptr<BenchCluster>> Start(const BenchOptions& bench,
                                                             const Options& options);

  const std::string& directory() const { return directory_->path(); }
  // A certificate for "client/a" from the cluster's authority, in files. REQUIRES: Options::tls.
  absl::StatusOr<security::Identity::Files> Certify(std::string_view name) const;
  bool tls() const { return authority_.has_value(); }
  LocalCluster& processes() { return *processes_; }
  client::Client& client(int node) { return *clients_[node]; }
  client::AdminClient& admin(int node) { return *admins_[node]; }

  absl::Status Import(const std::string& path, const std::string& key);  // at node 0
  // Writes a model of about `bytes`, different for each seed, and imports it at node 0 under `key`. Returns
  // the path.
  absl::StatusOr<std::string> ImportModel(const std::string& key, uint64_t bytes, uint64_t seed = 1);
  absl::StatusOr<std::string> WriteModel(const std::string& name, uint64_t bytes, uint64_t seed = 1);

  // Restarts a daemon that was killed; what it had only in memory is lost. Its clients find it again.
  absl::Status Restart(int node);

  // Waits until the daemon's host pool is complete: otherwise the pages that appear in the background would
  // be measured too.
  absl::Status AwaitPool(int node, uint64_t bytes);

  // Adds to `status` which daemons have ended by themselves, with the last lines of their logs, which a
  // failed call cannot tell. A daemon that the kernel killed for its memory has no last line.
  absl::Status WithEndedDaemons(const absl::Status& status);

  absl::Status Stop() { return processes_->Stop(); }

 private:
  explicit BenchCluster(const RequestContext& context) : context_(context) {}
  absl::Status AddCertificates(ClusterOptions& processes);

  const RequestContext context_;
  std::vector<uint64_t> pool_bytes_;  // of each daemon
  std::unique_ptr<TemporaryDirectory> directory_;
  std::optional<security::AuthorityFolder> authority_;
  std::unique_ptr<LocalCluster> processes_;
  std::vector<std::unique_ptr<client::Client>> clients_;
  std::vector<std::unique_ptr<client::AdminClient>> admins_;
};

}  // namespace tensorcast::bench
