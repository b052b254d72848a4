// The global store as a server. It runs as its own process (`tensorcast global-store`), or inside a daemon
// that works alone. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/config_reader.h"
#include "base/steady_time.h"
#include "global_store/app/etcd_group.h"
#include "global_store/catalog/retention.h"
#include "rpc/records.h"
#include "rpc/security_options.h"

namespace tensorcast::global_store {

struct GlobalStoreOptions {
  std::string listen = "127.0.0.1:0";     // host:port (0 picks one) or unix:/path
  std::string metadata_store = "sqlite";  // "memory", or "etcd"
  std::string metadata_path;              // SQLite's file; its folder must exist
  EtcdOptions etcd;                       // used with metadata_store "etcd"
  absl::Duration heartbeat_interval = absl::Seconds(2);
  absl::Duration node_ttl = absl::Seconds(10);       // at least two heartbeats
  absl::Duration grant_ttl = absl::Seconds(30);      // at least two heartbeats
  uint64_t broadcast_min_bytes = uint64_t{1} << 30;  // see GroupOptions::min_bytes
  Retention retention;                               // how many versions of keys are kept
  // Lanes that serve a replica while it fills. Programs set transport::FillingLaneNames(); the default is for
  // tests.
  std::vector<std::string> filling_lanes = {"local", "tcp", "loopback"};
  bool awaits_nodes = true;     // false: there is only one node, as in a daemon that works alone
  int max_connections = 16384;  // further connections are refused
  // Max calls of each class that wait for a thread; further calls fail with UNAVAILABLE
  // (rpc/admission_queue.h).
  size_t max_waiting_calls = 4096;
  rpc::ProcessFacts process;  // shown to operators
  rpc::SecurityOptions security{.own_roles = security::Only(security::Role::kGlobalStore)};
  std::function<SteadyTime()> clock = SteadyNow;
  std::function<absl::Time()> wall_clock = absl::Now;

  void FromConfig(ConfigReader& config) {
    config.Read("global_store.listen", listen);
    config.Read("global_store.metadata_store", metadata_store);
    config.Read("global_store.metadata_path", metadata_path);
    if (metadata_store == "etcd") etcd.FromConfig(config);
    config.Read("global_store.heartbeat_interval", heartbeat_interval);
    config.Read("global_store.node_ttl", node_ttl);
    config.Read("global_store.grant_ttl", grant_ttl);
    config.Read("global_store.broadcast_min_bytes", broadcast_min_bytes);
    config.Read("global_store.max_connections", max_connections);
    ReadRetention(config);
    security.FromConfig(config);
  }
  // Reports options that conflict with each other or with this host.
  void Validate(Findings& findings) const;
  // The part of Validate that a store inside a daemon needs: checks only the durations.
  void ValidateTimes(Findings& findings) const;

 private:
  void ReadRetention(ConfigReader& config);
};

class GlobalStoreServer {
 public:
  // INVALID_ARGUMENT for options that conflict with each other. Other errors are those of OpenMetadataStore
  // and rpc::Server::Start. With etcd, blocks until this store leads, and then listens.
  static absl::StatusOr<std::unique_ptr<GlobalStoreServer>> Start(const GlobalStoreOptions& options);
  // Shuts down at once.
  ~GlobalStoreServer();

  GlobalStoreServer(const GlobalStoreServer&) = delete;
  GlobalStoreServer& operator=(const GlobalStoreServer&) = delete;

  // The address for rpc::MakeChannel.
  const std::string& address() const;

  // Ends the watches and refuses new calls. Waits at most `grace` for running calls, then cancels them.
  // Idempotent.
  void Shutdown(absl::Duration grace);

 private:
  struct State;
  explicit GlobalStoreServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tensorcast::global_store
