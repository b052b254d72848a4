// Requests on tasks and broadcast groups, and the answers. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/replica/replica.h"
#include "global_store/catalog/facts.h"

namespace tensorcast::global_store {

// A task's place: its artifact, node and location. Tasks are listed in the order of this key.
std::string TaskKeyOf(const TaskRecord& task);

struct TaskTarget {
  std::string node;  // id or name of the node
  Location location;
};

// How GPUs get the artifact: by broadcast if that is expected to be faster (kAuto), always by broadcast
// (kNccl), or by pulls (kPull).
enum class TaskLane : uint8_t { kAuto, kNccl, kPull };

struct TaskRequest {
  std::string request_id;  // unique; the task ids contain it
  std::string artifact_id;
  std::vector<TaskTarget> targets;
  std::string asked_by;
  std::string traceparent;
  TaskLane lane = TaskLane::kAuto;
};

enum class TaskProgress : uint8_t { kWaiting, kRunning, kDone, kFailed };

// A task and its progress, including reports that are not durable yet.
struct TaskView {
  TaskRecord record;
  TaskProgress progress = TaskProgress::kWaiting;
  std::string waiting_for;  // for people, while the task waits
  uint64_t bytes = 0;       // bytes in place while it runs
  uint64_t bytes_total = 0;
};

// The new state of a task; its last state if the task is gone.
struct TaskChange {
  TaskView task;
  bool gone = false;
};

// The result for one target: an error, the id of a replica that is already there, or a task.
struct TaskPlacement {
  std::string node_id;
  absl::Status error;
  std::string replica_id;
  std::optional<TaskView> task;
};

// A planned broadcast group: GPUs of several nodes (groups.h).
struct GroupPlan {
  struct Rank {
    std::string node_id;
    Location location;
  };
  std::string group_id;
  std::string artifact_id;
  std::vector<Rank> ranks;            // by rank; the ranks of a node are consecutive
  std::string root_node;              // the node of the root
  std::vector<std::string> task_ids;  // tasks that the broadcast completes
};

struct TaskPlan {
  DurableFacts facts;
  std::vector<TaskPlacement> places;  // one per target, in the order of the targets
  std::optional<GroupPlan> group;     // the caller adds it (Groups::Add) once the facts are applied
};

// A forming group, as described to one of its nodes.
struct NodeGroup {
  struct Rank {
    uint32_t rank = 0;
    Location location;
  };
  std::string group_id;
  std::string artifact_id;
  uint32_t world_size = 0;
  std::vector<Rank> ranks;  // ranks of this node
  bool has_root = false;
  absl::Duration forming;  // time left to form
};

// The values that a group's root gives to all nodes.
struct GroupRoot {
  std::string communicator_id;
  uint32_t rank = 0;
  std::string node_name;
  std::string replica_id;
  std::string traceparent;
};

// The known node of a target.
struct NamedNode {
  std::string id;
  std::string name;
};

struct CancelPlan {
  DurableFacts facts;
  std::vector<TaskView> tasks;  // in their state before the cancel
};

// A node's report on a task that it works on.
struct TaskReport {
  std::string task_id;
  uint64_t bytes = 0;
  uint64_t bytes_total = 0;
  std::optional<absl::Status> ended;  // how this attempt ended
};

}  // namespace tensorcast::global_store
