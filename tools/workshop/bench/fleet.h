// Simulated nodes: each registers with a global store, reports its replicas and sends heartbeats, by real
// calls over a separate connection, and waits after errors as a daemon does. They hold no bytes. They may
// follow a key (fleet_follower.h). Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "tools/workshop/bench/fleet_follower.h"

namespace grpc {
class Channel;
class ChannelCredentials;
}  // namespace grpc

namespace tensorcast::v1 {
class Node;
}  // namespace tensorcast::v1

namespace tensorcast::bench {

// A channel with the options of rpc::MakeChannel and a separate connection; MakeChannel shares connections
// among the channels of a process. `credentials` null: in clear.
std::shared_ptr<grpc::Channel> OwnChannel(const std::string& address,
                                          std::shared_ptr<grpc::ChannelCredentials> credentials);

struct FleetOptions {
  std::string address;  // of the global store
  int nodes = 0;
  std::vector<std::string> artifacts;  // every node holds a ready replica of each
  // Makes the credentials of one node's channel. Empty: the connections are in clear.
  std::function<std::shared_ptr<grpc::ChannelCredentials>(int node)> credentials;
  // The time between the starts of two nodes.
  absl::Duration start_interval = absl::Milliseconds(1);
  // Every node but the first one does the tasks of a follower, which begins with the first of `artifacts`.
  std::optional<FleetFollower::Options> follower = {};
};

// What the nodes have seen so far.
struct FleetCounts {
  uint64_t heartbeats = 0;            // answered
  uint64_t refused = 0;               // calls that the store told to retry later
  uint64_t failed = 0;                // calls with any other error
  uint64_t registered_again = 0;      // registrations after a store had forgotten the node
  absl::Duration heartbeat_interval;  // the longest interval that a store has set
};

class Fleet {
 public:
  // "node-7": the name and the id of node 7.
  static std::string NameOf(int node);
  // The node as it registers.
  static v1::Node Describe(int node);

  explicit Fleet(FleetOptions options);  // starts the nodes
  ~Fleet();                              // waits until their calls have ended

  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  // The number of nodes with an inventory that the store with this epoch accepted.
  int ReportedTo(uint64_t epoch) const;
  // The number of nodes with an inventory that last a store with another epoch accepted.
  int ReportedToOthersThan(uint64_t epoch) const;
  FleetCounts counts() const;
  // Heartbeats and the calls of followers so far, by method.
  std::map<std::string, uint64_t, std::less<>> calls() const;
  // When each follower had the artifact.
  std::vector<SteadyTime> ReadyTimes(std::string_view artifact_id) const;
  std::string last_error() const;

 private:
  class Node;
  struct Shared;
  const std::unique_ptr<Shared> shared_;
};

}  // namespace tensorcast::bench
