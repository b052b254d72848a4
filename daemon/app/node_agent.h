// The node as the global store's link sees it: what it holds, and what it does when told to. Thread-safe;
// used by the link's thread.
#pragma once

#include "absl/time/time.h"
#include "daemon/global_store_link/eviction_guard.h"
#include "daemon/global_store_link/global_store_link.h"
#include "daemon/global_store_link/own_port.h"
#include "daemon/service/node_parts.h"

namespace tensorcast::daemon {

class NodeAgent : public LinkedNode {
 public:
  // Both must outlive it.
  NodeAgent(const NodeParts* parts, const OwnPort* port) : parts_(*parts), port_(*port) {}

  std::vector<ReplicaInfo> Inventory() override;
  absl::StatusOr<std::shared_ptr<const Manifest>> FindManifest(std::string_view artifact_id) override;
  void FillHeartbeat(v1::HeartbeatRequest* heartbeat) override;
  void OnHeartbeat(const v1::HeartbeatResponse& response) override;

 private:
  const NodeParts& parts_;
  const OwnPort& port_;
  absl::Time heartbeat_began_ = absl::InfinitePast();  // steady
};

}  // namespace tensorcast::daemon
