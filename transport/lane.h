// A lane is a way to the replicas of other daemons. The configuration, grants, metrics and reports use its
// name. Each lane describes itself in its own folder; transport/lanes lists them all.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "transport/transport.h"

namespace tensorcast::security {
class Identity;
}

namespace tensorcast::transport {

// The part of the configuration that is about the network between daemons. A lane reads its own keys.
struct LaneConfig {
  std::string advertise_host;  // the host that other daemons connect to; empty: the listen address's host
  absl::Duration peer_timeout = absl::Seconds(10);  // max time in which a connected peer takes no bytes
  // This process's identity, with which certified lanes encrypt. Null: no certificates, no encryption.
  std::shared_ptr<const security::Identity> identity;
  // Bytes per second of all limited lanes together; 0: no limit.
  uint64_t send_limit = 0;
  uint64_t receive_limit = 0;
  bool trusted_fabric = false;  // allows lanes that check no certificates
  // The GPUs with memory that a lane may read and write in place; null: none. Must outlive the transports.
  DeviceRuntime* devices = nullptr;
  // The values of the lanes' own keys (Lane::keys). A key that is a list may have several values.
  std::map<std::string, std::vector<std::string>, std::less<>> values;

  // Values: all values of the key. Value: the first one. Both are empty if the key has no value.
  std::vector<std::string> Values(std::string_view key) const {
    const auto found = values.find(key);
    return found == values.end() ? std::vector<std::string>() : found->second;
  }
  std::string Value(std::string_view key) const {
    const std::vector<std::string> all = Values(key);
    return all.empty() ? "" : all.front();
  }
};

// A reason why the daemon does not start with a configuration: the key, what is wrong with its value, and
// the remedy.
struct LaneProblem {
  std::string_view key;
  std::string what;
};

struct Lane {
  std::string_view name;
  std::string_view help;  // one line, for people
  // A receiver on this lane can read the source's whole pool. A grant for this lane therefore also allows a
  // pull over lanes that do not open the pool (LaneCovers).
  bool opens_pool = false;
  // Both ends show certificates if their processes have them.
  bool certified = false;
  // The configured limits of bytes per second (daemon.limits) apply to the lane.
  bool limited = false;
  // The lane can serve a replica while it fills: the source announces later chunks to the receivers.
  bool serves_filling = false;
  // The memory that the lane reads and writes in place, if host and network allow this.
  LaneMemory memory = LaneMemory::kHost;
  // The lane pins the pool's pages for the network adapter, so no later process can adopt the pool.
  bool pins_pool = false;
  // Paths of all of the lane's keys in the configuration, including the next two.
  std::vector<std::string_view> keys;
  // The key of the address that the lane listens on. Without a value the node does not have the lane. Empty:
  // the lane needs no address, and every node has it.
  std::string_view listen_key;
  // The key of the addresses that other daemons connect to. Empty: other daemons connect to the advertised
  // host.
  std::string_view advertise_key;
  // Returns why this host, or the rest of the configuration, does not allow the lane. Null: always allowed.
  // REQUIRES: the lane is configured.
  std::function<std::vector<LaneProblem>(const LaneConfig&)> check;
  // Creates the lane's Transport. UNAVAILABLE if this host has no network of the lane's kind. Null if the
  // lane is not a Transport; the daemon then implements it.
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(const LaneConfig&)> make;

  // The address that the lane listens on; empty: none.
  std::string listen(const LaneConfig& config) const { return config.Value(listen_key); }
  bool configured(const LaneConfig& config) const { return listen_key.empty() || !listen(config).empty(); }
};

}  // namespace tensorcast::transport
