#include "global_store/tasks/target_nodes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tensorcast::global_store {

void TargetNodes::Add(const std::string& id, const std::string& name) {
  ids_[name] = id;
  names_[id] = name;
}

void TargetNodes::AddKnown(const Membership& nodes, const Inventory& inventory) {
  for (const auto& [node_id, name] : nodes.bound_names()) Add(node_id, name);
  for (const auto& [node_id, away] : inventory.away()) Add(node_id, away.name);
  for (const auto& [node_id, node] : nodes.nodes()) Add(node_id, node.facts.name);
}

absl::StatusOr<NamedNode> TargetNodes::Find(const std::string& node) const {
  const auto named = ids_.find(node);
  const std::string& id = named != ids_.end() ? named->second : node;
  const auto found = names_.find(id);
  if (found != names_.end()) return NamedNode{.id = id, .name = found->second};
  return absl::NotFoundError(
      absl::StrCat("find node ", node, ": no node has this name or id; see tensorcast node ls"));
}

std::string TargetNodes::IdOf(const std::string& node) const {
  return Find(node).value_or(NamedNode{.id = node}).id;
}

absl::Status CheckRoom(const Node& node, const Location& location, uint64_t image_bytes) {
  const auto is_it = [&](const DeviceFacts& device) { return device.ordinal == location.device; };
  if (location.kind == LocationKind::kGpu && std::ranges::none_of(node.facts.devices, is_it)) {
    return absl::InvalidArgumentError(
        absl::StrCat("make a replica on node ", node.facts.name, ": the node has no ", location.ToString(),
                     ", and has ", node.facts.devices.size(),
                     node.facts.devices.size() == 1 ? " GPU" : " GPUs", "; name another location"));
  }
  const auto pool = std::ranges::find(node.pools, location, &PoolFacts::location);
  if (pool == node.pools.end() || pool->capacity_bytes >= image_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("make a replica on node ", node.facts.name, ": the node has ", pool->capacity_bytes,
                   " bytes for replicas at ", location.ToString(), ", and the artifact needs ", image_bytes,
                   " bytes; name another node or location"));
}

}  // namespace tensorcast::global_store
