// Tasks: what shall be where, kept until it is there. A node is handed its tasks with its heartbeats, all
// that it is to work on each time, so that one that was taken back ends by being left out. What the node
// reports is soft until the caller has made it durable; a store that restarts in between hands the task out
// again, and a replica that is there already makes it done at once.
//
// Owns the tasks and the broadcast groups that they form. Reads membership, catalog and inventory, which must
// outlive it. Thread-compatible: one caller at a time.
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
  // How many tasks a node is given at once.
  size_t at_once = 4;
  // Before each further attempt at a task; after as many failures and one more it has failed.
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
  // Tasks go with their artifact.
  void EraseOf(const std::string& artifact_id);
  // Forgets tasks that ended and are older.
  void Purge(absl::Time before);

  // What is there already is not requested, an open task stays as it is, and a task that failed, or that
  // lost its replica, is made anew. NOT_FOUND for an unknown artifact; what is wrong with a target is in its
  // place.
  absl::StatusOr<TaskPlan> Prepare(const TaskRequest& request, absl::Time now) const;
  // Forgets the open ones of an artifact at these places; none: everywhere.
  CancelPlan PrepareCancel(std::string_view artifact_id, const std::vector<TaskTarget>& targets,
                           absl::Time now) const;
  // Makes durable how attempts ended that Note heard of.
  bool HasToSettle() const { return !to_settle_.empty(); }
  DurableFacts PrepareSettle(absl::Time now) const;

  // Tasks of followers (TaskRecord::follows), which the caller derives from durable facts: they are not
  // durable themselves. A task that an operator requests takes the place of such a task.
  void ApplyFollowed(const TaskRecord& record, SteadyTime now);
  // A task that an operator requested stays.
  void EraseFollowed(const std::string& place);
  // The node of each target. NOT_FOUND for a node that is not known, INVALID_ARGUMENT for a GPU that a live
  // node does not have.
  std::vector<absl::StatusOr<NamedNode>> FindNodes(const std::vector<TaskTarget>& targets) const;
  // The task at a place (TaskKeyOf), if there is one.
  std::optional<TaskView> FindAt(const std::string& place) const;

  // Those of the artifact (empty: of all), in the order of TaskKeyOf, after the place that `after` names.
  std::vector<TaskView> List(std::string_view artifact_id, std::string_view after, size_t limit) const;
  uint64_t CountOpen() const;

  // What the node says of those that it works on. One that is not known, or that ended, is ignored.
  absl::Status Note(const NodeIdentity& node, const std::vector<TaskReport>& reports);
  // All that the node is to work on now, those first that it works on already. One that is missing here was
  // taken back. Nothing new for a node that drains.
  absl::StatusOr<std::vector<TaskRecord>> Take(const NodeIdentity& node, SteadyTime now);
  // What changed since the last call: of each task how it is now, progress and what it waits for included.
  bool HasChanged() const { return !changed_.empty(); }
  std::vector<TaskChange> TakeChanged();

  // Its tasks wait for something else now: it came, or its drain began or ended.
  void NoteNode(std::string_view node_id);
  // After it went: its tasks go back to those that wait, and its groups are over.
  void NoteNodeGone(std::string_view node_id);
  void Tick(SteadyTime now);

  Groups& groups() { return groups_; }

 private:
  friend class DirectoryInvariants;  // tests

  struct HeldTask {
    TaskRecord record;
    // Soft: the node was told of it, or says that it works on it. Ends with the attempt, and with the node.
    bool handed_out = false;
    uint64_t bytes = 0;
    uint64_t bytes_total = 0;
    SteadyTime due = SteadyTime::InfinitePast();  // not handed out before, after a failure
    std::optional<absl::Status> ended;            // the attempt, until that is durable
  };
  class NodeNames;

  void Erase(const std::string& place);
  void CloseAt(const TaskRecord& record, const std::string& place);
  // Around TakeChanged.
  void NoteChange(const HeldTask& task, bool gone = false);
  TaskView ViewOf(const HeldTask& task) const;
  std::string WhatItWaitsFor(const TaskRecord& task) const;
  // Ended attempts at tasks of followers, which wait for no commit.
  void SettleFollowed(SteadyTime now);
  // Null: it is not known.
  HeldTask* FindById(std::string_view task_id);
  // The task as it is once the end of its attempt is durable.
  TaskRecord Settled(const HeldTask& task, absl::Time now) const;
  // What comes of a target of Prepare; new tasks go into the plan.
  TaskPlacement PlanOne(const TaskRequest& request, const TaskTarget& target, uint64_t image_bytes,
                        const NodeNames& names, absl::Time now, TaskPlan& plan) const;

  const TaskOptions options_;
  const Membership& nodes_;
  const Catalog& catalog_;
  const Inventory& inventory_;
  Groups groups_;
  absl::btree_map<std::string, HeldTask>
      tasks_;  // by place (TaskKeyOf), so those of an artifact are adjacent
  absl::flat_hash_map<std::string, std::string> place_of_;  // by task id
  // Node id -> its open tasks in the order in which they are handed out: when each was made, and its place.
  absl::btree_map<std::string, std::set<std::pair<absl::Time, std::string>>> open_;
  std::set<std::string> to_settle_;                   // places of durable tasks with an ended attempt
  std::vector<std::string> followed_ends_;            // places of tasks of followers with an ended attempt
  absl::btree_map<std::string, TaskChange> changed_;  // by place
};

}  // namespace tensorcast::global_store
