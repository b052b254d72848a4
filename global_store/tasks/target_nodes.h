// The nodes that a request names as its targets: alive or not, by id or by name, as they are known at one
// moment. And the places on live nodes that cannot take a replica.
//
// Make one for all targets of a request. Thread-compatible.
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
  // A node that is added later takes over the name of an earlier one.
  void Add(const std::string& id, const std::string& name);
  // The nodes with bound names, those that are away, and last the live ones: they have the names that others
  // had.
  void AddKnown(const Membership& nodes, const Inventory& inventory);

  // NOT_FOUND for a node that was never heard of.
  absl::StatusOr<NamedNode> Find(const std::string& node) const;
  // The node's id; `node` itself for a node that was never heard of.
  std::string IdOf(const std::string& node) const;

 private:
  absl::flat_hash_map<std::string, std::string> ids_;    // by name
  absl::flat_hash_map<std::string, std::string> names_;  // by id
};

// Refuses what cannot succeed, before the node tries: INVALID_ARGUMENT for a GPU that the node does not have,
// RESOURCE_EXHAUSTED for a pool that is smaller than the image.
absl::Status CheckRoom(const Node& node, const Location& location, uint64_t image_bytes);

}  // namespace tensorcast::global_store
