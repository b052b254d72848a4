// Tasks: each task says that a node has to make a replica. An open task stays until its replica is made, the
// task fails, or it is cancelled. The answer to a heartbeat gives a node all tasks that it has to work on;
// the node stops work on a task that is missing in the answer. A node's report is soft state until the caller
// makes it durable. If the store restarts before that, the node gets the task again.
//
// Owns the tasks and their broadcast groups. Reads membership, catalog and inventory, which must outlive this
// object. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "global_store/inventory/inventory.h"
#include "global_store/tasks/groups.h"
#include "global_store/tasks/target_nodes.h"
#include "global_store/tasks/task.h"

namespace tensorcast::global_store {

struct TaskOptions {
  // The max number of tasks that a node works on at a time. Tasks of groups do not count.
  size_t at_once = 4;
  // The pause before each further attempt at a task. The task has failed when the attempt after the last
  // pause fails, or an attempt fails with an error that would come again.
  std::vector<absl::Duration> pauses = {absl::Seconds(5), absl::Seconds(30), absl::Minutes(2)};
  GroupOptions groups = {};
};

class Tasks {
 public:
  Tasks(const TaskOptions& options, const Membership& nodes, const Catalog& catalog,
        const Inventory& inventory)
      : options_(options),
        nodes_(nodes),
        catalog_(catalog),
        inventory_(inventory),
        groups_(options.groups, nodes, inventory) {}

  void Apply(const TaskRecord& record, SteadyTime now);
  // Erases the tasks of a deleted artifact.
  void EraseOf(const std::string& artifact_id);
  // Forgets tasks that ended before this time.
  void Purge(absl::Time before);

  // Plans the tasks of a request. A target that has the replica gets no task. An open task stays unchanged. A
  // task that failed, or lost its replica, is made again. NOT_FOUND: the artifact is unknown. The error of a
  // single target is in its TaskPlacement.
  absl::StatusOr<TaskPlan> Prepare(const TaskRequest& request, absl::Time now) const;
  // Plans to cancel the artifact's open tasks at `targets`; without targets, at all places.
  CancelPlan PrepareCancel(std::string_view artifact_id, const std::vector<TaskTarget>& targets,
                           absl::Time now) const;
  // True while Note has received ended attempts that are not durable yet.
  bool HasToSettle() const { return !to_settle_.empty(); }
  // The facts that make the ended attempts durable.
  DurableFacts PrepareSettle(absl::Time now) const;

  // Adds a task that brings a new version to a follower of a key (TaskRecord::follows). Such a task is not
  // durable. A task that an operator requests replaces it.
  void ApplyFollowed(const TaskRecord& record, SteadyTime now);
  // Erases the follower's task at the place. A task that an operator requested stays.
  void EraseFollowed(const std::string& place);
  // The node of each target. NOT_FOUND: the node is unknown. INVALID_ARGUMENT: a live node does not have the
  // GPU.
  std::vector<absl::StatusOr<NamedNode>> FindNodes(const std::vector<TaskTarget>& targets) const;
  // The task at a place (TaskKeyOf), if there is one.
  std::optional<TaskView> FindAt(const std::string& place) const;

  // At most `limit` tasks of the artifact (empty: of all artifacts), sorted by TaskKeyOf, after the place
  // `after`.
  std::vector<TaskView> List(std::string_view artifact_id, std::string_view after, size_t limit) const;
  uint64_t CountOpen() const;

  // Records a node's reports on its tasks. Ignores reports on unknown or ended tasks.
  absl::Status Note(const NodeIdentity& node, const std::vector<TaskReport>& reports);
  // All tasks that the node has to work on now, tasks under way first. The node must stop work on other
  // tasks. A draining node gets no new tasks.
  absl::StatusOr<std::vector<TaskRecord>> Take(const NodeIdentity& node, SteadyTime now);
  // The tasks that changed since the last call, each in its current state. A change of progress, or of
  // the reason for waiting, also counts.
  bool HasChanged() const { return !changed_.empty(); }
  std::vector<TaskChange> TakeChanged();

  // Call this when the node registered, or its drain began or ended.
  void NoteNode(std::string_view node_id);
  // Call this after the node is gone. Its tasks wait again, and its groups are over.
  void NoteNodeGone(std::string_view node_id);
  void Tick(SteadyTime now);

  Groups& groups() { return groups_; }

 private:
  friend class DirectoryInvariants;  // tests

  struct HeldTask {
    TaskRecord record;
    // The following fields are soft state, which ends with the attempt or with the node.
    bool handed_out = false;  // the node has the task
    uint64_t bytes = 0;
    uint64_t bytes_total = 0;
    SteadyTime due = SteadyTime::InfinitePast();  // the node gets the task again after this time
    std::optional<absl::Status> ended;            // how the attempt ended, until that is durable
  };

  void Erase(const std::string& place);
  void CloseAt(const TaskRecord& record, const std::string& place);
  // Collects changes for TakeChanged.
  void NoteChange(const HeldTask& task, bool gone = false);
  TaskView ViewOf(const HeldTask& task) const;
  std::string WhatItWaitsFor(const TaskRecord& task) const;
  // Settles ended attempts at followers' tasks, which need no commit.
  void SettleFollowed(SteadyTime now);
  // Null: the task is unknown.
  HeldTask* FindById(std::string_view task_id);
  // The task with the outcome of its ended attempt.
  TaskRecord Settled(const HeldTask& task, absl::Time now) const;
  // Every known node, including nodes that only a task names.
  TargetNodes KnownNodes() const;
  // The result for one target of Prepare; adds new tasks to the plan.
  TaskPlacement PlanOne(const TaskRequest& request, const TaskTarget& target, uint64_t image_bytes,
                        const TargetNodes& nodes, absl::Time now, TaskPlan& plan) const;

  const TaskOptions options_;
  const Membership& nodes_;
  const Catalog& catalog_;
  const Inventory& inventory_;
  Groups groups_;
  absl::btree_map<std::string, HeldTask>
      tasks_;  // by place (TaskKeyOf), so the tasks of an artifact are adjacent
  absl::flat_hash_map<std::string, std::string> place_of_;  // by task id
  // Node id -> its open tasks, in the order in which the node gets them: by creation time, then place.
  absl::btree_map<std::string, std::set<std::pair<absl::Time, std::string>>> open_;
  std::set<std::string> to_settle_;                   // places of durable tasks with an ended attempt
  std::vector<std::string> followed_ends_;            // places of tasks of followers with an ended attempt
  absl::btree_map<std::string, TaskChange> changed_;  // by place
};

}  // namespace tensorcast::global_store
