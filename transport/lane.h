// What a lane is: a way to the replicas of other daemons, with a name that stands in the configuration, in
// grants, in metrics and in reports. Each lane describes itself in its own folder; transport/lanes lists them
// all.
#pragma once

#include <functional>
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

// For tests and comparison: an environment variable that, where a daemon has it, puts UCX on TCP instead of
// RDMA. Every process that reaches its ports can then write to the daemon's memory.
inline constexpr char kUcxOverTcpVariable[] = "TENSORCAST_TEST_UCX_OVER_TCP";

// What the configuration says of the network between daemons. A lane takes what is its own.
struct LaneConfig {
  std::string advertise_host;  // that others know this one by; empty: the one that is listened on
  absl::Duration peer_timeout = absl::Seconds(10);  // a peer that takes nothing for so long is given up
  std::string tcp_listen;                           // host:port of the lane "tcp"
  // Where others reach it, as "host:port"; empty: at advertise_host and tcp_listen's port.
  std::vector<std::string> tcp_advertise;
  // This process's identity, where there are certificates: "tcp" is then encrypted. Null: it is not.
  std::shared_ptr<const security::Identity> identity;
  int tcp_connections = 0;             // of one pull; 0: by the number of cores
  std::string tcp_congestion_control;  // the kernel's name of one; empty: the host's choice
  // Of "tcp", bytes a second in all; 0: no limit.
  uint64_t send_limit = 0;
  uint64_t receive_limit = 0;
  std::string ucx_listen;     // host:port of the lane "ucx"; the next port is that of "ucx-rma". Port 0: any
  bool ucx_over_tcp = false;  // and not over RDMA devices: for tests, see kUcxOverTcpVariable
  bool trusted_fabric = false;  // a lane that knows no certificates may be opened
  // The GPUs with memory that a lane may read and write in place; null: none. Must outlive the transports.
  DeviceRuntime* devices = nullptr;
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
  // The key of the address that it listens on, and where a LaneConfig has that: a node without it does not
  // have the lane. Empty and null for a lane that is not a transport.
  std::string_view listen_key;
  std::string LaneConfig::* listen = nullptr;
  // The addresses that others are told; null: always the advertised host.
  std::vector<std::string> LaneConfig::* advertise = nullptr;
  // What this host, or the rest of the configuration, does not allow. Null: nothing. REQUIRES of its
  // argument: the lane is configured.
  std::function<std::vector<LaneProblem>(const LaneConfig&)> check;
  // Null for a lane that is not a transport: the daemon has its own way there. UNAVAILABLE when this host has
  // no network of the lane's kind.
  std::function<absl::StatusOr<std::unique_ptr<Transport>>(const LaneConfig&)> make;

  bool configured(const LaneConfig& config) const { return listen == nullptr || !(config.*listen).empty(); }
};

}  // namespace tensorcast::transport
