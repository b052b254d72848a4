// A node as the global store knows it: what it says of itself, and whether it is alive. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/labels.h"
#include "base/steady_time.h"
#include "core/replica/replica.h"
#include "global_store/membership/liveness.h"
#include "global_store/scheduler/source.h"

namespace tensorcast::global_store {

struct NodeIdentity {
  std::string node_id;
  uint64_t incarnation = 0;
};

struct DeviceFacts {
  int ordinal = 0;
  std::string uuid;
  std::string name;
  uint64_t total_bytes = 0;
};

struct PoolFacts {
  Location location;
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t pinned_bytes = 0;
  uint64_t high_water_bytes = 0;
  uint64_t failed_allocations = 0;
  uint64_t evictions = 0;
  uint32_t partial_replicas = 0;
  uint64_t partial_bytes = 0;
};

// Whether a node's GPUs take part in broadcasts between nodes: it says so with its heartbeats.
struct BroadcastAbility {
  std::string nccl_version;  // with which; empty: they do not
  std::string why_not;       // then, for people
};

// As a node registers itself; what may change since, it says with its heartbeats.
struct NodeFacts {
  std::string node_id;
  std::string name;
  uint64_t incarnation = 0;
  std::string host_id;
  std::string grpc_address;
  std::string handle_socket;  // empty: other daemons of the host cannot attach, so no local lane
  std::vector<std::string> lanes;
  std::vector<std::string> device_lanes = {};  // those of them that reach its GPUs' memory
  std::vector<DeviceFacts> devices;
  Labels labels;
  uint32_t protocol_version = 0;  // as it says; calls of another than ours are refused before they come here
  BroadcastAbility broadcasts = {};
  std::vector<int> unhealthy_devices = {};  // by ordinal
};

struct NodeView {
  NodeFacts facts;
  bool draining = false;
  bool unreachable = false;
  std::vector<PoolFacts> pools;
  absl::Duration since_heartbeat;
};

struct Registration {
  std::string grant_key;
  absl::Duration grant_key_age;
  Liveness liveness;
};

// A node that is alive.
struct Node {
  NodeFacts facts;
  LaneEnd end;  // what the scheduler needs of `facts`
  std::string grant_key;
  SteadyTime grant_key_given;
  bool draining = false;
  bool unreachable = false;
  std::vector<PoolFacts> pools;
  SteadyTime registered;
  SteadyTime last_heartbeat;
  SteadyTime rate_measured;  // that of `end`
  // Told with the last answer; the node may not have heard it, and goes by the one before then.
  absl::Duration told_ttl = absl::ZeroDuration();
  absl::Duration ttl = absl::ZeroDuration();  // silent for longer it is gone
  // The last time that it was asked of an origin in vain.
  SteadyTime silent_since = SteadyTime::InfinitePast();

  NodeView View(SteadyTime now) const;
};

}  // namespace tensorcast::global_store
