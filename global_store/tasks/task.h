// What the tasks and the broadcast groups are asked and what they answer. Plain values.
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

// A task's place: its artifact, node and location. Tasks are listed in this order.
std::string TaskKeyOf(const TaskRecord& task);

struct TaskTarget {
  std::string node;  // its id, or its name
  Location location;
};

// Whether GPUs get theirs by a broadcast: where that is expected to be faster, in any case,
// or never.
enum class TaskLane : uint8_t { kAuto, kNccl, kPull };

struct TaskRequest {
  std::string request_id;  // of its own: the tasks are named after it
  std::string artifact_id;
  std::vector<TaskTarget> targets;
  std::string asked_by;
  std::string traceparent;
  TaskLane lane = TaskLane::kAuto;
};

enum class TaskProgress : uint8_t { kWaiting, kRunning, kDone, kFailed };

// A task and how it stands. What its node said of it counts here from that moment on, though it be not
// durable yet.
struct TaskView {
  TaskRecord record;
  TaskProgress progress = TaskProgress::kWaiting;
  std::string waiting_for;  // for people, while it waits
  uint64_t bytes = 0;       // in their places, while it runs
  uint64_t bytes_total = 0;
};

// What a task is by now, or was when it went.
struct TaskChange {
  TaskView task;
  bool gone = false;
};

// What comes of one target of a request: an error, a replica that is there already, or a task.
struct TaskPlacement {
  std::string node_id;
  absl::Status error;
  std::string replica_id;
  std::optional<TaskView> task;
};

// A group to be: GPUs of several nodes, to all of which an artifact is broadcast from one of them.
struct GroupPlan {
  struct Rank {
    std::string node_id;
    Location location;
  };
  std::string group_id;
  std::string artifact_id;
  std::vector<Rank> ranks;            // by rank; those of a node follow each other
  std::string root_node;              // which has the root among its ranks
  std::vector<std::string> task_ids;  // that it fulfils
};

struct TaskPlan {
  DurableFacts facts;
  std::vector<TaskPlacement> places;  // one a target, in their order
  std::optional<GroupPlan> group;     // to be added once the facts are applied
};

// A group as one of its nodes is told of it while it forms.
struct NodeGroup {
  struct Rank {
    uint32_t rank = 0;
    Location location;
  };
  std::string group_id;
  std::string artifact_id;
  uint32_t world_size = 0;
  std::vector<Rank> ranks;  // of the node
  bool has_root = false;
  absl::Duration forming;  // left
};

// What a group's root brings for all.
struct GroupRoot {
  std::string communicator_id;
  uint32_t rank = 0;
  std::string node_name;
  std::string replica_id;
  std::string traceparent;
};

// A target's node, as it is known.
struct NamedNode {
  std::string id;
  std::string name;
};

struct CancelPlan {
  DurableFacts facts;
  std::vector<TaskView> tasks;  // as they were
};

// What a node says of a task that it works on.
struct TaskReport {
  std::string task_id;
  uint64_t bytes = 0;
  uint64_t bytes_total = 0;
  std::optional<absl::Status> ended;  // this attempt
};

}  // namespace tensorcast::global_store
