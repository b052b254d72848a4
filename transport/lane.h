// A lane is one kind of data connection between daemons, such as tcp. Each lane is declared in its own
// folder; transport/lanes lists all lanes.
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

// The network configuration of a daemon.
struct LaneConfig {
  std::string advertise_host;  // the host that other daemons connect to; empty: the listen address's host
  absl::Duration peer_timeout = absl::Seconds(10);  // a peer that takes no bytes in this time is cut off
  // This process's certificate and key, for certified lanes. Null: no encryption.
  std::shared_ptr<const security::Identity> identity;
  // Max bytes per second, for all limited lanes together; 0: no limit.
  uint64_t send_limit = 0;
  uint64_t receive_limit = 0;
  bool trusted_fabric = false;  // allows lanes that check no certificates
  // GPUs with memory that a lane may read and write in place; null: none. Must outlive the transports.
  DeviceRuntime* devices = nullptr;
  // The values of the keys of all lanes (Lane::keys). A key that is a list has one value for each item.
  std::map<std::string, std::vector<std::string>, std::less<>> values;

  // All values of the key.
  std::vector<std::string> Values(std::string_view key) const {
    const auto found = values.find(key);
    return found == values.end() ? std::vector<std::string>() : found->second;
  }
  // The first value of the key; empty: the key has no value.
  std::string Value(std::string_view key) const {
    const std::vector<std::string> all = Values(key);
    return all.empty() ? "" : all.front();
  }
};

// A fault in the configuration, with which the daemon does not start.
struct LaneProblem {
  std::string_view key;
  std::string what;  // what is wrong with the key's value, and the remedy
};

struct Lane {
  std::string_view name;  // in the configuration, grants, metrics and reports
  std::string_view help;  // one line, for people
  // A receiver on this lane can read the source's whole pool. A grant for this lane therefore also allows a
  // pull over lanes that do not open the pool (LaneCovers).
  bool opens_pool = false;
  // The source and the receiver show certificates if their processes have certificates.
  bool certified = false;
  // The rate limits in daemon.limits apply to the lane.
  bool limited = false;
  // The lane can serve a replica that is still filling.
  bool serves_filling = false;
  // The memory that the lane reads and writes in place, if the host and the network support this.
  LaneMemory memory = LaneMemory::kHost;
  // The lane pins the pool's pages for the network adapter, so a restarted daemon cannot adopt the pool.
  bool pins_pool = false;
  // All configuration keys of the lane, including listen_key and advertise_key.
  std::vector<std::string_view> keys;
  // The configuration key of the lane's listening address. If the key has no value, the node does not have
  // the lane. If listen_key is empty, the lane needs no address, and every node has the lane.
  std::string_view listen_key;
  // The configuration key of the addresses that other daemons connect to. Empty: other daemons connect to
  // LaneConfig::advertise_host.
  std::string_view advertise_key;
  // Returns the reasons why this host or the configuration does not allow the lane. If `check` is null, every
  // host and every configuration allows the lane. REQUIRES: configured().
  std::function<std::vector<LaneProblem>(const LaneConfig&)> check;
  // Creates the lane's Transport. UNAVAILABLE if this host lacks the lane's network. Null: the daemon
  // implements the lane, without a Transport.
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(const LaneConfig&)> make;

  // The address that the lane listens on; empty: none.
  std::string listen(const LaneConfig& config) const { return config.Value(listen_key); }
  bool configured(const LaneConfig& config) const { return listen_key.empty() || !listen(config).empty(); }
};

}  // namespace tensorcast::transport
