#include "global_store/tasks/groups.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast::global_store {
namespace {

// With fewer a pull by each is as good: the source sends everything once or twice.
constexpr size_t kMinNodesUnasked = 3;

}  // namespace

bool Groups::Group::Has(std::string_view node_id) const {
  return std::ranges::any_of(plan.ranks,
                             [&](const GroupPlan::Rank& rank) { return rank.node_id == node_id; });
}

absl::Status Groups::CheckMayBroadcast(std::string_view node_id) const {
  const Node* node = nodes_.Find(node_id);
  if (node == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("node ", node_id, " is away; start its daemon"));
  }
  const auto refuse = [&](std::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat("node ", node->facts.name, ": ", why));
  };
  if (node->draining) {
    return refuse(absl::StrCat("the node is draining; run `tensorcast node undrain ", node->facts.name, "`"));
  }
  const BroadcastAbility& ability = node->facts.broadcasts;
  if (ability.nccl_version.empty()) {
    return refuse(ability.why_not.empty()
                      ? "the daemon has not reported whether it can broadcast; see the log of the daemon"
                      : ability.why_not);
  }
  for (const auto& [group_id, group] : groups_) {
    if (group.over.ok() && group.Has(node_id)) {
      return refuse(absl::StrCat("the node takes part in the broadcast of ", group.plan.artifact_id,
                                 "; try again when that broadcast ends"));
    }
  }
  return absl::OkStatus();
}

void Groups::ChooseRoot(const std::string& nccl_version, GroupPlan& group) const {
  // A GPU that has the artifact already joins as a rank of its own and sends. It must have the same NCCL
  // version as the others.
  bool ready = false;
  inventory_.ForEach(group.artifact_id, [&](const Node& node, const HeldReplica& replica) {
    ready = replica.IsSource() && replica.facts.location.kind == LocationKind::kGpu &&
            node.facts.broadcasts.nccl_version == nccl_version && CheckMayBroadcast(node.facts.node_id).ok();
    if (ready) {
      group.root_node = node.facts.node_id;
      group.ranks.push_back({.node_id = node.facts.node_id, .location = replica.facts.location});
    }
    return !ready;
  });
  if (ready) return;
  // It pulls while it broadcasts: best from its own memory.
  const auto best = std::ranges::find_if(group.ranks, [&](const GroupPlan::Rank& rank) {
    return inventory_.FindInMemory(group.artifact_id, rank.node_id) != nullptr;
  });
  group.root_node = best == group.ranks.end() ? group.ranks.front().node_id : best->node_id;
}

absl::StatusOr<std::optional<GroupPlan>> Groups::Plan(const TaskRequest& request, uint64_t image_bytes,
                                                      const std::vector<TaskRecord>& tasks) const {
  const bool asked_for = request.lane == TaskLane::kNccl;
  if (request.lane == TaskLane::kPull || tasks.empty()) return std::nullopt;
  if (!asked_for && image_bytes < options_.min_bytes) return std::nullopt;
  GroupPlan group{.group_id = request.request_id, .artifact_id = request.artifact_id};
  std::string version;
  std::map<std::string, absl::Status> checked;  // by node id
  for (const TaskRecord& task : tasks) {
    const auto [known, is_new] = checked.try_emplace(task.node_id);
    if (is_new) known->second = CheckMayBroadcast(task.node_id);
    absl::Status fits = known->second;
    if (task.location.kind != LocationKind::kGpu) {
      fits = absl::FailedPreconditionError(
          absl::StrCat(task.node_name, ":", task.location.ToString(), " is not a GPU; name GPUs only"));
    } else if (fits.ok()) {
      const std::string& has = nodes_.Find(task.node_id)->facts.broadcasts.nccl_version;
      // One communicator needs one NCCL version: that of the first node that can take part decides.
      if (version.empty()) version = has;
      if (has != version) {
        fits = absl::FailedPreconditionError(absl::StrCat("node ", task.node_name, " has NCCL ", has,
                                                          ", and other nodes have ", version,
                                                          "; install one version on all nodes"));
      }
    }
    if (!fits.ok()) {
      // A broadcast that was asked for fails with the reason. Otherwise this target is left to a pull, and
      // the others may still form a group.
      if (asked_for) return Annotate(fits, "broadcast by nccl");
      continue;
    }
    group.ranks.push_back({.node_id = task.node_id, .location = task.location});
    group.task_ids.push_back(task.task_id);
  }
  if (group.ranks.empty()) return std::nullopt;
  ChooseRoot(version, group);
  std::set<std::string> nodes;
  for (const GroupPlan::Rank& rank : group.ranks) nodes.insert(rank.node_id);
  // The root's node counts, too, even where it has no task.
  // By default, few nodes pull as fast, and nodes that failed together a short while ago are not made to wait
  // for each other again.
  if (!asked_for && (nodes.size() < kMinNodesUnasked || FailedTogether(nodes))) return std::nullopt;
  if (nodes.size() < 2) {
    return absl::FailedPreconditionError(
        "broadcast by nccl: all named GPUs are on one node; name a GPU of another node, or leave out the "
        "lane");
  }
  std::ranges::sort(group.ranks, {},
                    [](const GroupPlan::Rank& rank) { return std::pair(rank.node_id, rank.location); });
  return group;
}

bool Groups::FailedTogether(const std::set<std::string>& nodes) const {
  return std::ranges::any_of(failed_, [&](const FailedGroup& failed) {
    return std::ranges::count_if(nodes,
                                 [&](const std::string& node) { return failed.nodes.contains(node); }) >= 2;
  });
}

void Groups::Add(GroupPlan plan) {
  Group group{.plan = std::move(plan)};
  for (const GroupPlan::Rank& rank : group.plan.ranks) group.nodes.insert(rank.node_id);
  const std::string group_id = group.plan.group_id;
  groups_.insert_or_assign(group_id, std::move(group));
}

std::vector<NodeGroup> Groups::Of(std::string_view node_id, SteadyTime now) {
  std::vector<NodeGroup> all;
  for (auto& [group_id, group] : groups_) {
    if (!group.over.ok() || !group.nodes.contains(node_id)) continue;
    // The time to form runs from the first heartbeat that tells of the group: before, no node could come.
    if (!group.forms_until.has_value()) group.forms_until = now + options_.forming;
    NodeGroup told{.group_id = group_id,
                   .artifact_id = group.plan.artifact_id,
                   .world_size = static_cast<uint32_t>(group.plan.ranks.size()),
                   .has_root = group.plan.root_node == node_id,
                   .forming = *group.forms_until - now};
    // The time to form is over, so no node is told any more. The group ends with the next call of Join or
    // Expire.
    if (told.forming <= absl::ZeroDuration()) continue;
    for (uint32_t rank = 0; rank < told.world_size; ++rank) {
      const GroupPlan::Rank& one = group.plan.ranks[rank];
      if (one.node_id == node_id) told.ranks.push_back({.rank = rank, .location = one.location});
    }
    all.push_back(std::move(told));
  }
  return all;
}

absl::StatusOr<std::optional<GroupRoot>> Groups::Join(const NodeIdentity& identity, std::string_view group_id,
                                                      const std::optional<GroupRoot>& root, SteadyTime now) {
  TC_RETURN_IF_ERROR(nodes_.CheckIdentity(identity));
  const auto found = groups_.find(group_id);
  if (found == groups_.end() || !found->second.Has(identity.node_id)) {
    return absl::NotFoundError(
        absl::StrCat("join group ", group_id, ": no group with this id contains this node; pull instead"));
  }
  Group& group = found->second;
  const bool is_root = group.plan.root_node == identity.node_id;
  // The other nodes receive from this rank, so it must not be one of a third node.
  const auto& ranks = group.plan.ranks;
  const bool is_own =
      root.has_value() && root->rank < ranks.size() && ranks[root->rank].node_id == identity.node_id;
  if (is_root && !is_own) {
    return absl::InvalidArgumentError(
        absl::StrCat("join group ", group_id,
                     ": this node is the root's node, and the call names no rank of this node as the root; "
                     "ask for the plan again"));
  }
  if (!is_root && root.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("join group ", group_id,
                     ": the call names a root, and this node is not the root's node; ask for the plan "
                     "again"));
  }
  // The first call after the time ends the group. Every later one gets the same answer.
  if (group.over.ok() && !group.nodes.empty() && group.forms_until.has_value() && now >= *group.forms_until) {
    group.over = absl::AbortedError(absl::StrCat("join group ", group_id, ": ", group.nodes.size(),
                                                 " nodes of the group did not join in time; pull instead"));
  }
  TC_RETURN_IF_ERROR(group.over);
  group.nodes.erase(identity.node_id);
  if (is_root) group.root = root;
  // The last node to come gets the root at once; the others ask again, and get it then.
  if (!group.nodes.empty()) return std::nullopt;
  return group.root;
}

absl::Status Groups::End(const NodeIdentity& identity, std::string_view group_id, const absl::Status& why,
                         SteadyTime now) {
  TC_RETURN_IF_ERROR(nodes_.CheckIdentity(identity));
  const auto found = groups_.find(group_id);
  if (found == groups_.end() || !found->second.over.ok() || !found->second.Has(identity.node_id)) {
    return absl::OkStatus();
  }
  Group& group = found->second;
  // The other nodes hear the reason from their next call of Join.
  group.over = absl::AbortedError(absl::StrCat("join group ", group_id, ": node ",
                                               nodes_.Find(identity.node_id)->facts.name,
                                               " ended the group (", why.ToString(), "); pull instead"));
  // A group that a node cancelled is not a failed one.
  if (group.nodes.empty() && !absl::IsCancelled(why)) {
    FailedGroup failed{.nodes = {}, .until = now + options_.pause};
    for (const GroupPlan::Rank& rank : group.plan.ranks) failed.nodes.insert(rank.node_id);
    failed_.push_back(std::move(failed));
  }
  return absl::OkStatus();
}

void Groups::Leave(std::string_view node_id) {
  for (auto& [group_id, group] : groups_) {
    if (group.over.ok() && group.Has(node_id)) {
      group.over = absl::AbortedError(
          absl::StrCat("join group ", group_id, ": node ", node_id, " is gone; pull instead"));
    }
  }
}

// One that is over is kept for as long as any node may ask what became of it.
void Groups::Expire(SteadyTime now, absl::FunctionRef<bool(const std::string& task_id)> is_open) {
  std::erase_if(failed_, [&](const FailedGroup& failed) { return failed.until <= now; });
  std::erase_if(groups_, [&](const auto& entry) {
    const Group& group = entry.second;
    // A group is in one of three states. It forms: nodes are missing. It is over: there is an error. It runs:
    // all nodes have come. The first two stay until the time to form is over, so that nodes can hear the
    // reason; one that no node was told of goes at once when it is over. The third stays while a task of it
    // is open.
    const bool forms = group.over.ok() && !group.nodes.empty();
    const bool in_time = group.forms_until.has_value() ? now < *group.forms_until : group.over.ok();
    if (forms || !group.over.ok()) return !in_time;
    return std::ranges::none_of(group.plan.task_ids, is_open);
  });
}

void Groups::ForEachTask(absl::FunctionRef<void(const std::string& task_id)> visit) const {
  for (const auto& [group_id, group] : groups_) {
    if (!group.over.ok()) continue;
    for (const std::string& task_id : group.plan.task_ids) visit(task_id);
  }
}

}  // namespace tensorcast::global_store
