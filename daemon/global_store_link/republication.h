// Publishes this node's artifacts again if the global store lost its database.
//
// Runs on the link's thread. A failed publication is logged, and repeated with the next inventory.
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

// Publishes each `unknown` artifact that has a ready replica in `inventory`. Queues all replicas of the
// published artifacts in the feed.
void RepublishUnknown(const Republisher& publisher, const std::vector<ReplicaInfo>& inventory,
                      const google::protobuf::RepeatedPtrField<std::string>& unknown);

}  // namespace tensorcast::daemon
