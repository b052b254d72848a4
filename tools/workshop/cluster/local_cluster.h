// A cluster of real processes on this machine: one global store or several, and N daemons, each with folders
// of its own below one directory. They use unix sockets and, for the lanes between hosts, loopback; settings
// can give them TCP ports, in clear unless settings name certificates. Daemons import from below the
// directory. The demo, benchmarks and tests use it. Thread-compatible; see process.h about threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "tools/workshop/cluster/process.h"

namespace tensorcast {

struct ClusterOptions {
  std::string binary;     // the tensorcast executable
  std::string directory;  // must exist; logs, sockets and stores are below it
  int daemons = 2;
  bool global_store = true;  // false: each daemon works alone
  // host:port of each of several global stores, which all daemons know; global_store_settings say which
  // metadata store they share. Empty: one store, on a unix socket unless a setting says otherwise.
  std::vector<std::string> global_store_addresses;
  // Between the daemons, as daemon.lanes. UCX's lanes use TCP and the setting for a trusted fabric: loopback
  // is not an RDMA device.
  std::vector<std::string> lanes = {"tcp"};
  std::vector<std::string> global_store_settings;  // "global_store.grant_ttl=5s", as for --set
  std::vector<std::string> daemon_settings;        // for every daemon
  // For single ones, after the common settings; may be shorter than their number.
  std::vector<std::vector<std::string>> settings_of_global_store;
  std::vector<std::vector<std::string>> settings_of_daemon;
  // Paths of namespace files, one per daemon; empty or missing: the parent's.
  std::string global_store_network_namespace;
  std::vector<std::string> network_namespaces;
  Environment global_store_environment;
  std::vector<Environment> daemon_environments;  // one per daemon; may be shorter
  absl::Duration start_timeout = absl::Seconds(60);
};

// A daemon's addresses, as it reported them when it was ready.
struct DaemonAddresses {
  std::string grpc;           // host:port if daemon.listen is set, else the unix socket
  std::string unix_socket;    // "unix:/path"
  std::string handle_socket;  // path
};

class LocalCluster {
 public:
  // Starts all processes and waits until they serve; of several global stores the first leads.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(const ClusterOptions& options);
  // Stops the daemons in order (SIGTERM, then SIGKILL), then the global stores.
  ~LocalCluster();

  int daemons() const { return static_cast<int>(daemons_.size()); }
  Process& daemon(int index) { return *daemons_[index].process; }
  const DaemonAddresses& addresses(int index) const { return daemons_[index].addresses; }
  // Of several, the last leader that AwaitLeader found.
  Process& global_store() { return *global_stores_[leader_].process; }
  int global_stores() const { return static_cast<int>(global_stores_.size()); }
  Process& global_store(int index) { return *global_stores_[index].process; }
  // As daemons are configured: all addresses of several.
  const std::string& global_store_address() const { return global_store_address_; }
  std::string global_store_directory(int index) const;
  std::string daemon_directory(int index) const;

  // Restarts an ended process with the same folders (and, for a global store, the same address). A daemon
  // also has `settings` from then on; one that begins with "--" is an option. One of several global stores is
  // not waited for, since it may not lead.
  absl::Status RestartDaemon(int index, const std::vector<std::string>& settings = {});
  absl::Status RestartGlobalStore(int index = 0);
  // Waits until a running one of several global stores leads.
  absl::Status AwaitLeader(SteadyTime deadline);

  // Sends SIGTERM to all and waits; exit codes other than 0 are in the error.
  absl::Status Stop(absl::Duration grace = absl::Seconds(20));

 private:
  struct GlobalStore {
    std::unique_ptr<Process> process;
    bool ready = false;  // it led, and kept leading until it ended
  };
  struct Daemon {
    std::unique_ptr<Process> process;
    DaemonAddresses addresses;
  };

  explicit LocalCluster(const ClusterOptions& options);
  absl::Status StartGlobalStores();
  absl::Status LaunchGlobalStore(int index);
  absl::Status AwaitGlobalStore(int index);
  absl::Status LaunchDaemon(int index);
  absl::Status AwaitDaemon(int index);

  ClusterOptions options_;
  std::vector<GlobalStore> global_stores_;
  int leader_ = 0;
  std::string global_store_address_;
  std::vector<Daemon> daemons_;
};

// A new folder below $TMPDIR (or /tmp); the destructor removes it with its content.
class TemporaryDirectory {
 public:
  static absl::StatusOr<std::unique_ptr<TemporaryDirectory>> Create(std::string_view prefix);
  ~TemporaryDirectory();
  const std::string& path() const { return path_; }

  // Removes all folders of this process, for a process that ends without destructors. Thread-safe.
  static void RemoveAll();

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace tensorcast
