// The node as the link to the global store (global_store_link.h) uses it. daemon/app implements this
// interface.
//
// The link calls these functions on its thread, with no lock held.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/artifact/manifest.h"
#include "core/replica/replica.h"
#include "daemon/global_store_link/global_store_client.h"

namespace tensorcast::daemon {

class LinkedNode {
 public:
  virtual ~LinkedNode() = default;
  virtual std::vector<ReplicaInfo> Inventory() = 0;
  virtual absl::StatusOr<std::shared_ptr<const Manifest>> FindManifest(std::string_view artifact_id) = 0;
  // Adds the pools, which the link reports at registration and with each heartbeat.
  virtual void FillPools(google::protobuf::RepeatedPtrField<v1::Pool>* pools) = 0;
  // Sets the grants in use, and whether other nodes can reach this node.
  virtual void FillHeartbeat(v1::HeartbeatRequest* heartbeat) = 0;
  // Called when the global store answered a heartbeat. The answer renews all grants that it does not revoke.
  virtual void OnHeartbeat(const v1::HeartbeatResponse& response) = 0;
};

}  // namespace tensorcast::daemon
