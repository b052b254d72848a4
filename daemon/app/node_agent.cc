#include "daemon/app/node_agent.h"

#include <string>
#include <vector>

#include "absl/log/log.h"
#include "base/steady_time.h"
#include "daemon/service/status_report.h"

namespace tensorcast::daemon {

std::vector<ReplicaInfo> NodeAgent::Inventory() { return parts_.engine->ListReplicas(); }

absl::StatusOr<std::shared_ptr<const Manifest>> NodeAgent::FindManifest(std::string_view artifact_id) {
  return parts_.engine->FindManifest(artifact_id);
}

void NodeAgent::FillHeartbeat(v1::HeartbeatRequest* heartbeat) {
  heartbeat_began_ = SteadyNow();
  parts_.publications.BeginHeartbeat();
  FillPools(parts_, heartbeat->mutable_pools());
  heartbeat->set_unreachable(port_.unreachable());
  for (const std::string& transport_id : parts_.access.running->Ids()) {
    heartbeat->add_active_transports(transport_id);
  }
}

void NodeAgent::OnHeartbeat(const v1::HeartbeatResponse& response) {
  const std::vector<std::string> revoked(response.revoked_transports().begin(),
                                         response.revoked_transports().end());
  parts_.servings->Revoke(revoked);
  parts_.access.running->Revoke(revoked);
  parts_.servings->Renew();
  for (const std::string& artifact_id : response.forgotten_artifacts()) {
    parts_.publications.DropUnlessProtected(artifact_id, [&] {
      // What became ready since was got from elsewhere, or its deletion comes again with the next heartbeat.
      const absl::Status forgotten = parts_.engine->Forget(artifact_id, heartbeat_began_);
      LOG_IF(WARNING, !forgotten.ok())
          << "Artifact " << artifact_id << " was deleted, but stays here: " << forgotten;
    });
  }
  for (const std::string& replica_id : response.evict_replicas()) {
    // Asked for again with the next heartbeat when it did not work: leases end, copies appear elsewhere.
    const absl::Status evicted = parts_.engine->Evict(replica_id, /*force=*/false);
    if (!evicted.ok()) {
      VLOG(1) << "Replica " << replica_id << " is not evicted yet: " << evicted;
    }
  }
}

}  // namespace tensorcast::daemon
