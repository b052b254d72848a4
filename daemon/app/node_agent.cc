#include "daemon/app/node_agent.h"

#include <string>
#include <vector>

#include "absl/log/log.h"
#include "base/steady_time.h"

namespace tensorcast::daemon {

std::vector<ReplicaInfo> NodeAgent::Inventory() { return options_.engine->ListReplicas(); }

absl::StatusOr<std::shared_ptr<const Manifest>> NodeAgent::FindManifest(std::string_view artifact_id) {
  return options_.engine->FindManifest(artifact_id);
}

void NodeAgent::FillPools(google::protobuf::RepeatedPtrField<v1::Pool>* pools) {
  options_.status->FillPools(pools);
}

void NodeAgent::FillHeartbeat(v1::HeartbeatRequest* heartbeat) {
  // The answer speaks of what this node had reported until here; what OnHeartbeat drops is not younger.
  heartbeat_began_ = SteadyNow();
  options_.publications->BeginHeartbeat();
  heartbeat->set_unreachable(options_.port->unreachable());
  for (const std::string& grant_id : options_.grants->Ids()) heartbeat->add_active_grants(grant_id);
  for (const std::string& grant_id : options_.servings->OpenGrants()) heartbeat->add_served_grants(grant_id);
  options_.tasks->Report(heartbeat);
  options_.groups->Report(heartbeat);
  options_.status->FillUnhealthyDevices(heartbeat->mutable_unhealthy_devices());
}

// Runs on the link's thread, so the next heartbeat waits for all of it.
void NodeAgent::OnHeartbeat(const v1::HeartbeatResponse& response) {
  const std::vector<std::string> revoked(response.revoked_grants().begin(), response.revoked_grants().end());
  options_.servings->Revoke(revoked);
  options_.grants->Revoke(revoked);
  // After the revoked ones ended: the others may go on, since the global store was heard.
  options_.servings->Renew();
  for (const std::string& artifact_id : response.forgotten_artifacts()) {
    options_.publications->DropUnlessProtected(artifact_id, [&] {
      // What became ready since was got from elsewhere, or its deletion comes again with the next heartbeat.
      const absl::Status forgotten = options_.engine->Forget(artifact_id, heartbeat_began_);
      LOG_IF(WARNING, !forgotten.ok())
          << "drop deleted artifact " << artifact_id << " from this node: " << forgotten;
    });
  }
  // Before the tasks: the ingests of tasks join the groups.
  options_.groups->Answered(response);
  options_.tasks->Answered(response);
  if (response.evict_replicas().empty() || evicting_.exchange(true)) return;
  // Not on this thread: each eviction asks the global store, and may wait for the next heartbeat's answer.
  evictions_.Post([this, replica_ids = response.evict_replicas()] {
    for (const std::string& replica_id : replica_ids) {
      // Asked for again with the next heartbeat when it did not work: leases end, copies appear elsewhere.
      const absl::Status evicted = options_.engine->Evict(replica_id, /*force=*/false);
      if (!evicted.ok()) VLOG(1) << "Replica " << replica_id << " is not evicted yet: " << evicted;
    }
    evicting_ = false;
  });
}

}  // namespace tensorcast::daemon
