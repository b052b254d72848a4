// Groups: GPUs of several nodes that a request requested at once, among which the artifact is broadcast from
// one of them. A group is planned with its tasks, is told to its nodes with their heartbeats, and forms when
// all of them have come to say that their memory is there. It is tried once: one that did not form in time,
// or that any of its nodes left, is over, and its tasks go on as if it had never been. A node is in one
// group at a time: it has one helper.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "global_store/directory/directory.h"

namespace tensorcast::global_store {
namespace {

// With fewer a pull by each is as good: the source sends everything once or twice.
constexpr size_t kMinNodesUnasked = 3;

}  // namespace

void Directory::SetBroadcasts(std::string_view node_id, BroadcastAbility ability) {
  if (auto node = nodes_.find(node_id); node != nodes_.end()) {
    node->second.facts.broadcasts = std::move(ability);
  }
}

absl::Status Directory::CheckMayBroadcast(std::string_view node_id) const {
  const auto found = nodes_.find(node_id);
  if (found == nodes_.end()) return absl::FailedPreconditionError(absl::StrCat("node ", node_id, " is away"));
  const NodeState& node = found->second;
  const auto refuse = [&](std::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat("node ", node.facts.name, ": ", why));
  };
  if (node.draining) return refuse("it drains");
  const BroadcastAbility& ability = node.facts.broadcasts;
  if (ability.nccl_version.empty()) {
    return refuse(ability.why_not.empty() ? "it has not said that it can" : ability.why_not);
  }
  for (const auto& [group_id, group] : groups_) {
    const auto is_here = [&](const GroupPlan::Rank& rank) { return rank.node_id == node_id; };
    if (group.over.ok() && std::ranges::any_of(group.plan.ranks, is_here)) {
      return refuse(absl::StrCat("it takes part in the broadcast of ", group.plan.artifact_id));
    }
  }
  return absl::OkStatus();
}

std::optional<GroupPlan::Rank> Directory::FindReadyRoot(std::string_view artifact_id,
                                                        const std::string& nccl_version) const {
  std::optional<GroupPlan::Rank> root;
  ForEachReplica(artifact_id, [&](const NodeState& node, const HeldReplica& replica) {
    const bool fits = replica.IsSource() && replica.facts.location.kind == LocationKind::kGpu &&
                      node.facts.broadcasts.nccl_version == nccl_version &&
                      CheckMayBroadcast(node.facts.node_id).ok();
    if (fits) root = GroupPlan::Rank{.node_id = node.facts.node_id, .location = replica.facts.location};
    return !fits;
  });
  return root;
}

absl::StatusOr<std::optional<GroupPlan>> Directory::PlanGroup(const TaskRequest& request,
                                                              const TaskPlan& plan) const {
  const bool asked_for = request.lane == TaskLane::kNccl;
  if (request.lane == TaskLane::kPull || plan.facts.tasks.empty()) return std::nullopt;
  const uint64_t image_bytes = artifacts_.find(request.artifact_id)->second.record.image_bytes;
  if (!asked_for && image_bytes < options_.group_min_bytes) return std::nullopt;
  GroupPlan group{.group_id = request.request_id, .artifact_id = request.artifact_id};
  std::string version;
  std::map<std::string, absl::Status> checked;  // by node id
  std::set<std::string> nodes;
  for (const TaskRecord& task : plan.facts.tasks) {
    const auto [known, is_new] = checked.try_emplace(task.node_id);
    if (is_new) known->second = CheckMayBroadcast(task.node_id);
    absl::Status fits = known->second;
    if (task.location.kind != LocationKind::kGpu) {
      fits = absl::FailedPreconditionError(
          absl::StrCat(task.node_name, ":", task.location.ToString(), " is not a GPU"));
    } else if (fits.ok()) {
      const std::string& has = nodes_.find(task.node_id)->second.facts.broadcasts.nccl_version;
      if (version.empty()) version = has;
      if (has != version) {
        fits = absl::FailedPreconditionError(
            absl::StrCat("node ", task.node_name, " has NCCL ", has, ", and others have ", version));
      }
    }
    if (!fits.ok()) {
      if (asked_for) return Annotate(fits, "broadcast by nccl");
      continue;
    }
    nodes.insert(task.node_id);
    group.ranks.push_back({.node_id = task.node_id, .location = task.location});
    group.task_ids.push_back(task.task_id);
  }
  if (group.ranks.empty()) return std::nullopt;
  if (const std::optional<GroupPlan::Rank> ready = FindReadyRoot(request.artifact_id, version)) {
    group.root_node = ready->node_id;
    nodes.insert(ready->node_id);
    group.ranks.push_back(*ready);
  } else {
    // It pulls while it broadcasts: best from its own memory.
    const auto has_it = [&](const GroupPlan::Rank& rank) {
      return FindInMemory(request.artifact_id, nodes_.find(rank.node_id)->second) != nullptr;
    };
    const auto best = std::ranges::find_if(group.ranks, has_it);
    group.root_node = best == group.ranks.end() ? group.ranks.front().node_id : best->node_id;
  }
  if (!asked_for && (nodes.size() < kMinNodesUnasked || FailedTogether(nodes))) return std::nullopt;
  if (nodes.size() < 2) {
    return absl::FailedPreconditionError(
        "broadcast by nccl: it needs GPUs of two nodes or more; name another node's GPU, or leave out the "
        "lane: within one node no request is needed");
  }
  std::ranges::sort(group.ranks, {},
                    [](const GroupPlan::Rank& rank) { return std::pair(rank.node_id, rank.location); });
  return group;
}

bool Directory::FailedTogether(const std::set<std::string>& nodes) const {
  return std::ranges::any_of(failed_groups_, [&](const FailedGroup& failed) {
    return std::ranges::count_if(nodes,
                                 [&](const std::string& node) { return failed.nodes.contains(node); }) >= 2;
  });
}

void Directory::AddGroup(GroupPlan plan) {
  Group group{.plan = std::move(plan)};
  for (const GroupPlan::Rank& rank : group.plan.ranks) group.nodes.insert(rank.node_id);
  const std::string group_id = group.plan.group_id;
  groups_.insert_or_assign(group_id, std::move(group));
}

std::vector<NodeGroup> Directory::GroupsOf(std::string_view node_id, SteadyTime now) {
  std::vector<NodeGroup> all;
  for (auto& [group_id, group] : groups_) {
    if (!group.over.ok() || !group.nodes.contains(node_id)) continue;
    if (!group.forms_until.has_value()) group.forms_until = now + options_.group_forming;
    NodeGroup told{.group_id = group_id,
                   .artifact_id = group.plan.artifact_id,
                   .world_size = static_cast<uint32_t>(group.plan.ranks.size()),
                   .has_root = group.plan.root_node == node_id,
                   .forming = *group.forms_until - now};
    if (told.forming <= absl::ZeroDuration()) continue;
    for (uint32_t rank = 0; rank < told.world_size; ++rank) {
      const GroupPlan::Rank& one = group.plan.ranks[rank];
      if (one.node_id == node_id) told.ranks.push_back({.rank = rank, .location = one.location});
    }
    all.push_back(std::move(told));
  }
  return all;
}

absl::StatusOr<std::optional<GroupRoot>> Directory::JoinGroup(const NodeIdentity& identity,
                                                              std::string_view group_id,
                                                              const std::optional<GroupRoot>& root,
                                                              SteadyTime now) {
  TC_RETURN_IF_ERROR(CheckIdentity(identity));
  const auto found = groups_.find(group_id);
  const auto is_here = [&](const GroupPlan::Rank& rank) { return rank.node_id == identity.node_id; };
  if (found == groups_.end() || std::ranges::none_of(found->second.plan.ranks, is_here)) {
    return absl::NotFoundError(absl::StrCat("no group ", group_id, " with this node"));
  }
  Group& group = found->second;
  const bool is_root = group.plan.root_node == identity.node_id;
  if (is_root != root.has_value() || (is_root && root->rank >= group.plan.ranks.size())) {
    return absl::InvalidArgumentError("a group's root comes from its node alone, and is one of its ranks");
  }
  if (group.over.ok() && !group.nodes.empty() && group.forms_until.has_value() && now >= *group.forms_until) {
    group.over =
        absl::AbortedError(absl::StrCat(group.nodes.size(), " nodes of the group did not come in time"));
  }
  TC_RETURN_IF_ERROR(group.over);
  group.nodes.erase(identity.node_id);
  if (is_root) group.root = root;
  if (!group.nodes.empty()) return std::nullopt;
  return group.root;
}

absl::Status Directory::EndGroup(const NodeIdentity& identity, std::string_view group_id,
                                 const absl::Status& why, SteadyTime now) {
  TC_RETURN_IF_ERROR(CheckIdentity(identity));
  const auto found = groups_.find(group_id);
  const auto is_here = [&](const GroupPlan::Rank& rank) { return rank.node_id == identity.node_id; };
  if (found == groups_.end() || !found->second.over.ok() ||
      std::ranges::none_of(found->second.plan.ranks, is_here)) {
    return absl::OkStatus();
  }
  Group& group = found->second;
  group.over = absl::AbortedError(
      absl::StrCat("node ", nodes_.find(identity.node_id)->second.facts.name, ": ", why.ToString()));
  // A group that a node cancelled is not a failed one.
  if (group.nodes.empty() && !absl::IsCancelled(why)) {
    FailedGroup failed{.nodes = {}, .until = now + options_.group_pause};
    for (const GroupPlan::Rank& rank : group.plan.ranks) failed.nodes.insert(rank.node_id);
    failed_groups_.push_back(std::move(failed));
  }
  return absl::OkStatus();
}

void Directory::LeaveGroups(std::string_view node_id) {
  const auto is_here = [&](const GroupPlan::Rank& rank) { return rank.node_id == node_id; };
  for (auto& [group_id, group] : groups_) {
    if (group.over.ok() && std::ranges::any_of(group.plan.ranks, is_here)) {
      group.over = absl::AbortedError(absl::StrCat("node ", node_id, " is gone"));
    }
  }
}

// One that is over is kept for as long as any node may ask what became of it.
void Directory::ExpireGroups(SteadyTime now) {
  std::erase_if(failed_groups_, [&](const FailedGroup& failed) { return failed.until <= now; });
  std::erase_if(groups_, [&](const auto& entry) {
    const Group& group = entry.second;
    const bool forms = group.over.ok() && !group.nodes.empty();
    const bool in_time = group.forms_until.has_value() ? now < *group.forms_until : group.over.ok();
    if (forms || !group.over.ok()) return !in_time;
    return std::ranges::none_of(group.plan.task_ids, [&](const std::string& task_id) {
      const auto place = place_of_task_.find(task_id);
      return place != place_of_task_.end() &&
             tasks_.find(place->second)->second.record.state == TaskState::kOpen;
    });
  });
}

}  // namespace tensorcast::global_store
