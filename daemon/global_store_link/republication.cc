#include "daemon/global_store_link/republication.h"

#include <map>

#include "absl/log/log.h"
#include "base/upkeep.h"
#include "rpc/convert/convert.h"

namespace tensorcast::daemon {

void RepublishUnknown(const Republisher& publisher, const std::vector<ReplicaInfo>& inventory,
                      const google::protobuf::RepeatedPtrField<std::string>& unknown) {
  std::map<std::string, const ReplicaInfo*> ready;
  for (const ReplicaInfo& replica : inventory) {
    if (replica.state == ReplicaState::kReady) ready[replica.artifact_id] = &replica;
  }
  int published = 0;
  for (const std::string& artifact_id : unknown) {
    const auto held = ready.find(artifact_id);
    const auto manifest = publisher.node->FindManifest(artifact_id);
    if (held == ready.end() || !manifest.ok()) {
      continue;  // gone meanwhile, or still being made: then its maker publishes it
    }
    v1::PublishArtifactRequest first;
    *first.mutable_node() = publisher.identity;
    *first.mutable_replica() = rpc::ToProto(*held->second);
    const absl::Status status =
        publisher.client
            ->PublishArtifact(UpkeepContext(publisher.call_timeout), **manifest, first, /*asking=*/"")
            .status();
    LOG_IF(WARNING, !status.ok()) << "publish artifact " << artifact_id
                                  << " again, which the global store does not know: " << status;
    if (status.ok()) ++published;
    // All its replicas on this node, now that the global store knows what they are of.
    for (const ReplicaInfo& replica : inventory) {
      if (status.ok() && replica.artifact_id == artifact_id) publisher.feed->Touch(replica);
    }
  }
  LOG_IF(WARNING, published > 0) << "The global store did not know " << published
                                 << " artifacts of this node, so this daemon published them again; if the "
                                    "store lost its database, bind the keys again";
}

}  // namespace tensorcast::daemon
