// A node in the global store: its description of itself, and its liveness. Plain values.
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

// Whether a node's GPUs take part in broadcasts between nodes, as its heartbeats say.
struct BroadcastAbility {
  std::string nccl_version;  // empty: the GPUs take no part
  std::string why_not;       // the reason if they take no part, for people
};

// The node as it registers; its heartbeats report later changes.
struct NodeFacts {
  std::string node_id;
  std::string name;
  uint64_t incarnation = 0;
  std::string host_id;
  std::string grpc_address;
  std::string handle_socket;  // empty: the node has no local lane
  std::vector<std::string> lanes;
  std::vector<std::string> device_lanes = {};  // the lanes that reach its GPUs' memory
  std::vector<DeviceFacts> devices;
  Labels labels;
  uint32_t protocol_version = 0;
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

// A live node.
struct Node {
  NodeFacts facts;
  LaneEnd end;  // the part of `facts` that the scheduler needs
  std::string grant_key;
  SteadyTime grant_key_given;
  bool draining = false;
  bool unreachable = false;
  std::vector<PoolFacts> pools;
  SteadyTime registered;
  SteadyTime last_heartbeat;
  SteadyTime rate_measured;  // when the rate in `end` was measured
  // The TTL in the last answer. A node that did not receive that answer applies the previous TTL.
  absl::Duration told_ttl = absl::ZeroDuration();
  absl::Duration ttl = absl::ZeroDuration();  // a node that is silent for longer has expired
  // The last time that the node did not answer a question about an origin.
  SteadyTime silent_since = SteadyTime::InfinitePast();

  NodeView View(SteadyTime now) const;
};

}  // namespace tensorcast::global_store
