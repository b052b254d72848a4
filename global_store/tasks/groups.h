// Broadcast groups: GPUs of several nodes in one request; one of them broadcasts the artifact to the others.
// A group is planned with its tasks, and its nodes learn of it in answers to their heartbeats. The group
// forms when all its nodes have reported that their memory is ready. A group is tried once: if it does not
// form in time, or a node leaves, the group is over, and its tasks continue without a broadcast. A node is in
// one group at a time, since it has one helper process.
//
// Soft state: a restarted store has no groups. Reads membership and inventory, which must outlive this
// object. Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "global_store/inventory/inventory.h"
#include "global_store/tasks/task.h"

namespace tensorcast::global_store {

struct GroupOptions {
  // Max time from the first node's heartbeat until all nodes have joined. It covers the heartbeats of the
  // other nodes, and the wait for their ingests' turns.
  absl::Duration forming = absl::Seconds(15);
  // Smaller artifacts are broadcast between nodes only on request, because forming a group takes seconds.
  uint64_t min_bytes = uint64_t{1} << 30;
  // If a broadcast fails after all nodes joined, these nodes are not grouped again for this long, except on
  // request.
  absl::Duration pause = absl::Minutes(10);
};

class Groups {
 public:
  Groups(const GroupOptions& options, const Membership& nodes, const Inventory& inventory)
      : options_(options), nodes_(nodes), inventory_(inventory) {}

  // The group for the tasks of a plan; nullopt: no group. FAILED_PRECONDITION, with the reason, if a group
  // was requested and is not possible.
  absl::StatusOr<std::optional<GroupPlan>> Plan(const TaskRequest& request, uint64_t image_bytes,
                                                const std::vector<TaskRecord>& tasks) const;
  // Call this once the group's tasks are durable.
  void Add(GroupPlan plan);
  // The forming groups of a node. A group's time to form runs from the first call that returns it.
  std::vector<NodeGroup> Of(std::string_view node_id, SteadyTime now);
  // Records that this node's ranks are ready; only the root's node passes `root`. Returns the root once all
  // nodes are ready; nullopt before. ABORTED, with the reason, if the group is over. NOT_FOUND if the group
  // is unknown or does not have this node.
  absl::StatusOr<std::optional<GroupRoot>> Join(const NodeIdentity& node, std::string_view group_id,
                                                const std::optional<GroupRoot>& root, SteadyTime now);
  // Records that this node does not take part, or no longer does: the group is over. Does nothing for a group
  // that is unknown or over.
  absl::Status End(const NodeIdentity& node, std::string_view group_id, const absl::Status& why,
                   SteadyTime now);
  // Call this when the node is gone: its groups are over.
  void Leave(std::string_view node_id);
  // Erases groups that did not form in time, have ended, or have no open task.
  void Expire(SteadyTime now, absl::FunctionRef<bool(const std::string& task_id)> is_open);
  // Calls `visit` with the id of each task in the groups that are not over.
  void ForEachTask(absl::FunctionRef<void(const std::string& task_id)> visit) const;

 private:
  struct Group {
    GroupPlan plan;
    std::optional<SteadyTime> forms_until;     // not set: no node knows of the group yet
    std::set<std::string, std::less<>> nodes;  // nodes that have not joined yet
    std::optional<GroupRoot> root;
    absl::Status over;
    bool Has(std::string_view node_id) const;
  };
  // Nodes that recently failed to broadcast together; the cause may still exist.
  struct FailedGroup {
    std::set<std::string, std::less<>> nodes;
    SteadyTime until;
  };

  // Why no GPU of this node can take part in a new group.
  absl::Status CheckMayBroadcast(std::string_view node_id) const;
  // Sets the group's root: a node with a ready replica on a GPU, which is added to the ranks, or else the
  // best of the ranks.
  void ChooseRoot(const std::string& nccl_version, GroupPlan& group) const;
  // Whether two of the nodes failed together recently.
  bool FailedTogether(const std::set<std::string>& nodes) const;

  const GroupOptions options_;
  const Membership& nodes_;
  const Inventory& inventory_;
  std::map<std::string, Group, std::less<>> groups_;  // by id
  std::vector<FailedGroup> failed_;
};

}  // namespace tensorcast::global_store
