// The invariants of a cluster of real processes after any fault and the recovery from it: acknowledged
// artifacts and keys exist, every ready replica has the right bytes, and every process uses no more resources
// than before. All waits are on the daemons' streamed status. Thread-compatible; the cluster and the devices
// must outlive it. Errors say which process broke which invariant.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "client/admin.h"
#include "core/device/device_runtime.h"
#include "tensorcast/client.h"
#include "tools/workshop/chaos/footprint.h"
#include "tools/workshop/cluster/local_cluster.h"

namespace tensorcast::chaos {

class Invariants {
 public:
  Invariants(LocalCluster& cluster, DeviceRuntime& devices) : cluster_(cluster), devices_(devices) {}

  // From now on `key` must lead to this artifact, with the bytes of `model`.
  void Acknowledge(const std::string& key, const std::string& artifact_id, const std::string& model);
  void Forget(const std::string& key);

  // Waits until every daemon runs, and each daemon and the global store know each other.
  absl::Status AwaitWhole(SteadyTime deadline);
  absl::Status CheckAcknowledged(SteadyTime deadline);
  // Attaches to each ready host and GPU replica of each node and compares it. Artifacts that were not
  // acknowledged (their client ended) must be the model `unacknowledged`.
  absl::Status VerifyReplicas(SteadyTime deadline, const std::string& unacknowledged = "");

  // Records the nodes' present state for AwaitBaseline.
  absl::Status RecordBaseline(SteadyTime deadline);
  // Waits until pools, replicas and handle connections are as recorded, there is no lease, ticket, transfer,
  // serving or grant, and no process has more descriptors, threads or mappings.
  absl::Status AwaitBaseline(SteadyTime deadline);

  // Checks `condition` on this node's status until it is OK; returns its last error otherwise.
  absl::Status Await(int node, SteadyTime deadline,
                     const std::function<absl::Status(const v1::GetStatusResponse&)>& condition);

 private:
  struct Baseline {
    std::map<std::string, uint64_t> pool_bytes;  // by location
    uint32_t replicas = 0;
    uint32_t handle_connections = 0;
    Footprint footprint;
  };
  struct Truth {
    std::string artifact_id;
    std::string model;
  };

  static absl::StatusOr<std::map<std::string, uint64_t>> PoolBytes(const v1::GetStatusResponse& status);
  absl::Status CompareWithBaseline(int node, const v1::GetStatusResponse& status);
  absl::Status CheckNoGrants(SteadyTime deadline);
  absl::Status VerifyReplica(client::Client& client, const v1::Replica& replica, SteadyTime deadline,
                             const std::string& unacknowledged);

  LocalCluster& cluster_;
  DeviceRuntime& devices_;
  std::map<std::string, Truth> acknowledged_;
  std::vector<Baseline> baselines_;
  Footprint global_store_baseline_;
};

}  // namespace tensorcast::chaos
