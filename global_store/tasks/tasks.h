// Tasks: replicas that nodes have to make, and where. A task is kept until its replica is made. The answer to
// a heartbeat gives a node all tasks that it has to work on, so leaving a task out cancels it. A node's
// report is soft state until the caller has made it durable. If the store restarts before that, it gives the
// task to the node again; if the replica already exists, the task is done at once.
//
// Owns the tasks and their broadcast groups. Reads membership, catalog and inventory, which must outlive this
// object. Thread-compatible: one caller at a time.
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
  // The max number of tasks that a node works on at a time.
  size_t at_once = 4;
  // The pause before each further attempt at a task. If the attempt after the last pause fails, the task has
  // failed.
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

  // Plans the tasks of a request. A replica that exists needs no task, an open task stays unchanged, and a
  // task that failed, or lost its replica, is made again. NOT_FOUND for an unknown artifact; the error of a
  // single target is in its TaskPlacement.
  absl::StatusOr<TaskPlan> Prepare(const TaskRequest& request, absl::Time now) const;
  // Plans to forget the artifact's open tasks at these places. No targets: all places.
  CancelPlan PrepareCancel(std::string_view artifact_id, const std::vector<TaskTarget>& targets,
                           absl::Time now) const;
  // HasToSettle: whether Note received ended attempts that are not durable yet. PrepareSettle: the facts that
  // make them durable.
  bool HasToSettle() const { return !to_settle_.empty(); }
  DurableFacts PrepareSettle(absl::Time now) const;

  // Adds a task of a follower (TaskRecord::follows), which the caller derives from durable facts: it is not
  // durable itself. A task that an operator requests replaces it.
  void ApplyFollowed(const TaskRecord& record, SteadyTime now);
  // Erases the follower's task at the place; a task that an operator requested stays.
  void EraseFollowed(const std::string& place);
  // The node of each target. NOT_FOUND for an unknown node, INVALID_ARGUMENT for a GPU that a live node does
  // not have.
  std::vector<absl::StatusOr<NamedNode>> FindNodes(const std::vector<TaskTarget>& targets) const;
  // The task at a place (TaskKeyOf), if there is one.
  std::optional<TaskView> FindAt(const std::string& place) const;

  // The tasks of the artifact (empty: of all), sorted by TaskKeyOf, after the place that `after` names.
  std::vector<TaskView> List(std::string_view artifact_id, std::string_view after, size_t limit) const;
  uint64_t CountOpen() const;

  // Records a node's reports on its tasks. Ignores reports on unknown or ended tasks.
  absl::Status Note(const NodeIdentity& node, const std::vector<TaskReport>& reports);
  // All tasks that the node has to work on now; those that it already works on come first. The node must stop
  // work on any other task. A draining node gets no new tasks.
  absl::StatusOr<std::vector<TaskRecord>> Take(const NodeIdentity& node, SteadyTime now);
  // The tasks that changed since the last call, each in its current state. A change of progress, or of the
  // reason for waiting, counts too.
  bool HasChanged() const { return !changed_.empty(); }
  std::vector<TaskChange> TakeChanged();

  // Call this when the node registered, or its drain began or ended: its tasks now wait for another reason.
  void NoteNode(std::string_view node_id);
  // Call this after the node is gone: its tasks wait again, and its groups are over.
  void NoteNodeGone(std::string_view node_id);
  void Tick(SteadyTime now);

  Groups& groups() { return groups_; }

 private:
  friend class DirectoryInvariants;  // tests

  struct HeldTask {
    TaskRecord record;
    // Soft state, which ends with the attempt or with the node. True: the node knows of the task, or reports
    // on it.
    bool handed_out = false;
    uint64_t bytes = 0;
    uint64_t bytes_total = 0;
    SteadyTime due = SteadyTime::InfinitePast();  // after a failure: not given to the node before this time
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
  // The task after the end of its attempt is made durable.
  TaskRecord Settled(const HeldTask& task, absl::Time now) const;
  // Every node that is known now, including nodes that only an earlier task names.
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
