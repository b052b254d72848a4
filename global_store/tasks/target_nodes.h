// Finds the nodes that a request names as its targets, by id or by name, alive or not. A TargetNodes has the
// nodes that were known at one moment: make one for all targets of a request. Thread-compatible.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/replica/replica.h"
#include "global_store/inventory/inventory.h"
#include "global_store/membership/membership.h"
#include "global_store/tasks/task.h"

namespace tensorcast::global_store {

class TargetNodes {
 public:
  // If two nodes have the same name, Find returns the node that was added last.
  void Add(const std::string& id, const std::string& name);
  // Adds all known nodes. If a live node and another node have the same name, Find returns the live node.
  void AddKnown(const Membership& nodes, const Inventory& inventory);

  // NOT_FOUND for an unknown node.
  absl::StatusOr<NamedNode> Find(const std::string& node) const;
  // The node's id; for an unknown node, `node` itself.
  std::string IdOf(const std::string& node) const;

 private:
  absl::flat_hash_map<std::string, std::string> ids_;    // by name
  absl::flat_hash_map<std::string, std::string> names_;  // by id
};

// INVALID_ARGUMENT: the node does not have this GPU. RESOURCE_EXHAUSTED: the pool of the location is smaller
// than the image.
absl::Status CheckRoom(const Node& node, const Location& location, uint64_t image_bytes);

}  // namespace tensorcast::global_store
