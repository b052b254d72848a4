// Represents the node to GlobalStoreLink: reports what the node holds, and carries out the requests in
// heartbeat responses. Thread-safe; used by the link's thread.
#pragma once

#include <atomic>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "base/task_loop.h"
#include "core/engine/engine.h"
#include "daemon/global_store_link/global_store_link.h"
#include "daemon/global_store_link/reachability_probe.h"
#include "daemon/service/broadcast_groups.h"
#include "daemon/service/publications.h"
#include "daemon/service/replication_tasks.h"
#include "daemon/service/status_report.h"
#include "daemon/serving/serve_registry.h"
#include "daemon/sources/running_grants.h"

namespace tensorcast::daemon {

class NodeAgent : public LinkedNode {
 public:
  struct Options {
    StoreEngine* engine = nullptr;  // all must outlive the agent
    ServeRegistry* servings = nullptr;
    RunningGrants* grants = nullptr;
    Publications* publications = nullptr;
    ReplicationTasks* tasks = nullptr;
    BroadcastGroups* groups = nullptr;
    const StatusReporter* status = nullptr;
    const ReachabilityProbe* port = nullptr;
  };

  explicit NodeAgent(const Options& options) : options_(options) {}

  std::vector<ReplicaInfo> Inventory() override;
  absl::StatusOr<std::shared_ptr<const Manifest>> FindManifest(std::string_view artifact_id) override;
  void FillPools(google::protobuf::RepeatedPtrField<v1::Pool>* pools) override;
  void FillHeartbeat(v1::HeartbeatRequest* heartbeat) override;
  void OnHeartbeat(const v1::HeartbeatResponse& response) override;

 private:
  const Options options_;
  SteadyTime heartbeat_began_ = SteadyTime::InfinitePast();
  std::atomic<bool> evicting_ = false;     // true while the evictions of an earlier heartbeat run
  TaskLoop evictions_{"heartbeat evict"};  // destroyed first, since its tasks use the other members
};

}  // namespace tensorcast::daemon
