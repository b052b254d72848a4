// What a lane is: a way to the replicas of other daemons, with a name that stands in the configuration, in
// grants, in metrics and in reports. Each lane describes itself in its own folder; transport/lanes lists them
// all.
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

// What the configuration says of the network between daemons. A lane takes what is its own.
struct LaneConfig {
  std::string advertise_host;  // that others know this one by; empty: the one that is listened on
  absl::Duration peer_timeout = absl::Seconds(10);  // a peer that takes nothing for so long is given up
  // This process's identity, where there are certificates: a certified lane is then encrypted. Null: it is
  // not.
  std::shared_ptr<const security::Identity> identity;
  // Of all limited lanes, bytes a second in all; 0: no limit.
  uint64_t send_limit = 0;
  uint64_t receive_limit = 0;
  bool trusted_fabric = false;  // a lane that knows no certificates may be opened
  // The GPUs with memory that a lane may read and write in place; null: none. Must outlive the transports.
  DeviceRuntime* devices = nullptr;
  // The lanes' own keys (Lane::keys) and their values, lists with several.
  std::map<std::string, std::vector<std::string>, std::less<>> values;

  // Empty where the key has none.
  std::vector<std::string> Values(std::string_view key) const {
    const auto found = values.find(key);
    return found == values.end() ? std::vector<std::string>() : found->second;
  }
  std::string Value(std::string_view key) const {
    const std::vector<std::string> all = Values(key);
    return all.empty() ? "" : all.front();
  }
};

// Something in a configuration that a start refuses: the key, and what is wrong with its value and what to
// do.
struct LaneProblem {
  std::string_view key;
  std::string what;
};

struct Lane {
  std::string_view name;
  std::string_view help;  // one line, for people
  // A receiver that uses this lane reaches the whole pool of the source, so a receiver with a grant for it
  // may as well be sent single replicas over another.
  bool opens_pool = false;
  // Both ends show certificates where the process has them.
  bool certified = false;
  // daemon.limits holds for it.
  bool limited = false;
  // It serves a replica that fills: chunks that come later are announced to its receivers.
  bool serves_filling = false;
  // What it reads and writes in place, where host and network allow it.
  LaneMemory memory = LaneMemory::kHost;
  // It keeps the pool's pages for the network card: no later process can take their place.
  bool pins_pool = false;
  // Its keys in the configuration, by their paths. Those of the address that it listens on, without which a
  // node does not have the lane, and of the addresses that others are told, are among them. Empty: it has
  // none; others are told the advertised host.
  std::vector<std::string_view> keys;
  std::string_view listen_key;
  std::string_view advertise_key;
  // What this host, or the rest of the configuration, does not allow. Null: nothing. REQUIRES of its
  // argument: the lane is configured.
  std::function<std::vector<LaneProblem>(const LaneConfig&)> check;
  // Null for a lane that is not a transport: the daemon has its own way there. UNAVAILABLE when this host has
  // no network of the lane's kind.
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(const LaneConfig&)> make;

  // Where it listens; empty: nowhere.
  std::string listen(const LaneConfig& config) const { return config.Value(listen_key); }
  bool configured(const LaneConfig& config) const { return listen_key.empty() || !listen(config).empty(); }
};

}  // namespace tensorcast::transport
