// Groups: GPUs of several nodes that a request requested at once, among which the artifact is broadcast from
// one of them. A group is planned with its tasks, is told to its nodes with their heartbeats, and forms when
// all of them have come to say that their memory is there. It is tried once: one that did not form in time,
// or that any of its nodes left, is over, and its tasks go on as if it had never been. A node is in one
// group at a time: it has one helper.
//
// Soft state: a store that restarts knows of none. Reads membership and inventory, which must outlive it.
// Thread-compatible.
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
  // From when the first node is told of a group until all have to have come: the others' heartbeats, and
  // their ingests' turns.
  absl::Duration forming = absl::Seconds(15);
  // Smaller artifacts are broadcast between nodes only when that is asked for: to form takes seconds.
  uint64_t min_bytes = uint64_t{1} << 30;
  // Nodes that had all come to a broadcast that failed are in none together for so long, unless that is
  // asked for.
  absl::Duration pause = absl::Minutes(10);
};

class Groups {
 public:
  Groups(const GroupOptions& options, const Membership& nodes, const Inventory& inventory)
      : options_(options), nodes_(nodes), inventory_(inventory) {}

  // The group that the tasks of a plan make; nullopt: none. FAILED_PRECONDITION with the reason where it was
  // asked for and cannot be.
  absl::StatusOr<std::optional<GroupPlan>> Plan(const TaskRequest& request, uint64_t image_bytes,
                                                const std::vector<TaskRecord>& tasks) const;
  // Once its tasks are durable.
  void Add(GroupPlan plan);
  // Those that form, of a node: their time runs from the first call that names them.
  std::vector<NodeGroup> Of(std::string_view node_id, SteadyTime now);
  // This node's ranks are ready; `root` from the root's node alone. nullopt: others are not yet. ABORTED with
  // the reason for a group that is over, NOT_FOUND for one that is not known or is without this node.
  absl::StatusOr<std::optional<GroupRoot>> Join(const NodeIdentity& node, std::string_view group_id,
                                                const std::optional<GroupRoot>& root, SteadyTime now);
  // This node does not take part, or does no more. Nothing happens to one that is not known or is over.
  absl::Status End(const NodeIdentity& node, std::string_view group_id, const absl::Status& why,
                   SteadyTime now);
  // The node is gone: its groups are over.
  void Leave(std::string_view node_id);
  // A group goes when its time to form is over and it did not, or it has ended, or no task of it is open.
  void Expire(SteadyTime now, absl::FunctionRef<bool(const std::string& task_id)> is_open);
  // Calls `visit` with each task of a group that is not over.
  void ForEachTask(absl::FunctionRef<void(const std::string& task_id)> visit) const;

 private:
  struct Group {
    GroupPlan plan;
    std::optional<SteadyTime> forms_until;     // no node was told of it yet
    std::set<std::string, std::less<>> nodes;  // that have yet to come
    std::optional<GroupRoot> root;
    absl::Status over;
    bool Has(std::string_view node_id) const;
  };
  // Why the nodes of a group could not broadcast may not have changed yet.
  struct FailedGroup {
    std::set<std::string, std::less<>> nodes;
    SteadyTime until;
  };

  // Why no GPU of this node can take part in a group that is to be made.
  absl::Status CheckMayBroadcast(std::string_view node_id) const;
  // Adds a root that has the artifact ready, or takes the best of the ranks.
  void ChooseRoot(const std::string& nccl_version, GroupPlan& group) const;
  // Whether two of them failed together a while ago.
  bool FailedTogether(const std::set<std::string>& nodes) const;

  const GroupOptions options_;
  const Membership& nodes_;
  const Inventory& inventory_;
  std::map<std::string, Group, std::less<>> groups_;  // by id
  std::vector<FailedGroup> failed_;
};

}  // namespace tensorcast::global_store
