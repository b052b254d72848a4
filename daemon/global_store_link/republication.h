// Publishes artifacts of this node again if the global store lost its database and no longer knows them. The
// global store lists replicas only of artifacts that it knows.
//
// Belongs to the link's thread. A publication that fails is logged, and repeated with the next inventory.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/replica/replica.h"
#include "daemon/global_store_link/global_store_client.h"
#include "daemon/global_store_link/linked_node.h"
#include "daemon/global_store_link/replica_feed.h"

namespace tensorcast::daemon {

// What a publication needs from the link.
struct Republisher {
  GlobalStoreClient* client = nullptr;
  ReplicaFeed* feed = nullptr;
  LinkedNode* node = nullptr;
  v1::NodeIdentity identity;
  absl::Duration call_timeout;  // of each call
};

// Publishes those of the `unknown` artifacts that have a ready replica in `inventory`, with the manifests
// that this node has. Then queues all their replicas in the feed, as if they had just changed.
void RepublishUnknown(const Republisher& publisher, const std::vector<ReplicaInfo>& inventory,
                      const google::protobuf::RepeatedPtrField<std::string>& unknown);

}  // namespace tensorcast::daemon
