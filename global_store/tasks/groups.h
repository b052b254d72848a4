// Broadcast groups: GPUs of several nodes in one request. One GPU, the root, broadcasts the artifact to the
// other GPUs. A group is planned with its tasks. Answers to heartbeats tell its nodes about the group. The
// group forms when all its nodes have reported that their memory is ready. If the group does not form in
// time, or a node leaves, the group is over, and its tasks continue with pulls. A group is tried once. A node
// is in one group at a time.
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
  // Max time from the first heartbeat answer that tells a node of the group until all nodes have joined.
  absl::Duration forming = absl::Seconds(15);
  // Smaller artifacts are broadcast between nodes only on request.
  uint64_t min_bytes = uint64_t{1} << 30;
  // After a failed broadcast, its nodes are not grouped again for this long, except on request.
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
  // The forming groups of a node. The time to form begins with the first call that returns the group.
  std::vector<NodeGroup> Of(std::string_view node_id, SteadyTime now);
  // Records that this node's ranks are ready. Only the root's node passes `root`. Returns the root once all
  // nodes are ready; nullopt until then. ABORTED, with the reason: the group is over. NOT_FOUND: the group is
  // unknown, or does not have this node.
  absl::StatusOr<std::optional<GroupRoot>> Join(const NodeIdentity& node, std::string_view group_id,
                                                const std::optional<GroupRoot>& root, SteadyTime now);
  // Records that this node does not take part, or has stopped. The group is over. Does nothing for a group
  // that is unknown or over.
  absl::Status End(const NodeIdentity& node, std::string_view group_id, const absl::Status& why,
                   SteadyTime now);
  // Ends the groups of a node that is gone.
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
  // Nodes that recently failed to broadcast together.
  struct FailedGroup {
    std::set<std::string, std::less<>> nodes;
    SteadyTime until;
  };

  // An error says why no GPU of this node can take part in a new group.
  absl::Status CheckMayBroadcast(std::string_view node_id) const;
  // Sets the group's root. A GPU of any node that has a ready replica becomes a further rank and the root.
  // If no GPU has a ready replica, the best of the ranks becomes the root.
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
