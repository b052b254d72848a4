// Tasks: which replicas have to be made where, kept until they are there. Heartbeats hand a node all tasks
// that it has to work on, so a task is cancelled by leaving it out. A node's report is soft state until the
// caller has made it durable. If the store restarts before that, it hands the task out again; where the
// replica is already there, the task is done at once.
//
// Owns the tasks and their broadcast groups. Reads membership, catalog and inventory, which must outlive it.
// Thread-compatible: one caller at a time.
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
#include "global_store/tasks/task.h"

namespace tensorcast::global_store {

struct TaskOptions {
  // The max number of tasks that a node is given at once.
  size_t at_once = 4;
  // The pause before each further attempt at a task; when the attempt after the last pause fails, the task
  // has failed.
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
  // Forgets ended tasks that are older.
  void Purge(absl::Time before);

  // A replica that is already there needs no task, an open task stays as it is, and a task that failed, or
  // lost its replica, is made anew. NOT_FOUND for an unknown artifact; the error of one target is in its
  // place.
  absl::StatusOr<TaskPlan> Prepare(const TaskRequest& request, absl::Time now) const;
  // Forgets the artifact's open tasks at these places; no places: everywhere.
  CancelPlan PrepareCancel(std::string_view artifact_id, const std::vector<TaskTarget>& targets,
                           absl::Time now) const;
  // The ended attempts that Note received and that have to be made durable.
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

  // Takes a node's reports on its tasks. A report on an unknown or ended task is ignored.
  absl::Status Note(const NodeIdentity& node, const std::vector<TaskReport>& reports);
  // All tasks that the node has to work on now, first the ones that it already works on. A task that is
  // missing here was cancelled. A draining node gets no new tasks.
  absl::StatusOr<std::vector<TaskRecord>> Take(const NodeIdentity& node, SteadyTime now);
  // The tasks that changed since the last call, each in its current state, including progress and the reason
  // for waiting.
  bool HasChanged() const { return !changed_.empty(); }
  std::vector<TaskChange> TakeChanged();

  // Call it when the node came, or its drain began or ended: its tasks now wait for another reason.
  void NoteNode(std::string_view node_id);
  // Call it after the node went: its tasks wait again, and its groups are over.
  void NoteNodeGone(std::string_view node_id);
  void Tick(SteadyTime now);

  Groups& groups() { return groups_; }

 private:
  friend class DirectoryInvariants;  // tests

  struct HeldTask {
    TaskRecord record;
    // Soft state: the node was told of the task, or reports on it. Ends with the attempt, and with the node.
    bool handed_out = false;
    uint64_t bytes = 0;
    uint64_t bytes_total = 0;
    SteadyTime due = SteadyTime::InfinitePast();  // not handed out before this time, after a failure
    std::optional<absl::Status> ended;            // how the attempt ended, until that is durable
  };
  class NodeNames;

  void Erase(const std::string& place);
  void CloseAt(const TaskRecord& record, const std::string& place);
  // Collects changes for TakeChanged.
  void NoteChange(const HeldTask& task, bool gone = false);
  TaskView ViewOf(const HeldTask& task) const;
  std::string WhatItWaitsFor(const TaskRecord& task) const;
  // Settles ended attempts at tasks of followers, which wait for no commit.
  void SettleFollowed(SteadyTime now);
  // Null: the task is unknown.
  HeldTask* FindById(std::string_view task_id);
  // The task after the end of its attempt is made durable.
  TaskRecord Settled(const HeldTask& task, absl::Time now) const;
  // The result for one target of Prepare; adds new tasks to the plan.
  TaskPlacement PlanOne(const TaskRequest& request, const TaskTarget& target, uint64_t image_bytes,
                        const NodeNames& names, absl::Time now, TaskPlan& plan) const;

  const TaskOptions options_;
  const Membership& nodes_;
  const Catalog& catalog_;
  const Inventory& inventory_;
  Groups groups_;
  absl::btree_map<std::string, HeldTask>
      tasks_;  // by place (TaskKeyOf), so the tasks of an artifact are adjacent
  absl::flat_hash_map<std::string, std::string> place_of_;  // by task id
  // Node id -> its open tasks in the order of handing out: time made, and place.
  absl::btree_map<std::string, std::set<std::pair<absl::Time, std::string>>> open_;
  std::set<std::string> to_settle_;                   // places of durable tasks with an ended attempt
  std::vector<std::string> followed_ends_;            // places of tasks of followers with an ended attempt
  absl::btree_map<std::string, TaskChange> changed_;  // by place
};

}  // namespace tensorcast::global_store
