// Tasks: what shall be where, kept until it is there. A node is handed its tasks with its heartbeats, all
// that it is to work on each time, so that one that was taken back ends by being left out. What the node
// reports is soft until the caller has made it durable; a store that restarts in between hands the task out
// again, and a replica that is there already makes it done at once.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "global_store/directory/directory.h"

namespace tensorcast::global_store {
namespace {

// Others say that the request makes no sense there, however often it is made.
bool MayGoBetterAgain(const absl::Status& error) {
  switch (error.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnimplemented:
      return false;
    default:
      return true;
  }
}

// What can be told before the node tries.
absl::Status CheckRoom(const NodeFacts& node, const std::vector<PoolFacts>& pools, const Location& location,
                       uint64_t image_bytes) {
  const auto is_it = [&](const DeviceFacts& device) { return device.ordinal == location.device; };
  if (location.kind == LocationKind::kGpu && std::ranges::none_of(node.devices, is_it)) {
    return absl::InvalidArgumentError(absl::StrCat("node ", node.name, " has no ", location.ToString(),
                                                   "; it has ", node.devices.size(), " GPUs"));
  }
  const auto pool = std::ranges::find(pools, location, &PoolFacts::location);
  if (pool == pools.end() || pool->capacity_bytes >= image_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("node ", node.name, " has ", pool->capacity_bytes,
                                                   " bytes for replicas at ", location.ToString(),
                                                   ", and the artifact takes ", image_bytes));
}

}  // namespace

// Every name that is known at this moment, made once for all targets of a request.
class Directory::NodeNames {
 public:
  explicit NodeNames(const Directory& directory) {
    // Nodes that are alive last: they have the names that others had.
    for (const auto& [place, task] : directory.tasks_) Add(task.record.node_id, task.record.node_name);
    for (const auto& [node_id, name] : directory.names_of_nodes_) Add(node_id, name);
    for (const auto& [node_id, away] : directory.away_) Add(node_id, away.name);
    for (const auto& [node_id, node] : directory.nodes_) Add(node_id, node.facts.name);
  }

  struct Node {
    std::string id;
    std::string name;
  };
  absl::StatusOr<Node> Find(const std::string& node) const {
    const auto named = ids_.find(node);
    const std::string& id = named != ids_.end() ? named->second : node;
    const auto found = names_.find(id);
    if (found != names_.end()) return Node{.id = id, .name = found->second};
    return absl::NotFoundError(
        absl::StrCat("no node is called ", node, ", nor has that id: `tensorcast status` lists them"));
  }

 private:
  void Add(const std::string& id, const std::string& name) {
    ids_[name] = id;
    names_[id] = name;
  }
  absl::flat_hash_map<std::string, std::string> ids_;    // by name
  absl::flat_hash_map<std::string, std::string> names_;  // by id
};

std::string Directory::TaskKeyOf(const TaskRecord& task) {
  return absl::StrCat(task.artifact_id, "\n", task.node_id, "\n", task.location.ToString());
}

const Directory::HeldReplica* Directory::FindReplicaAt(std::string_view artifact_id,
                                                       const std::string& node_id,
                                                       const Location& location) const {
  const auto holders = holders_.find(artifact_id);
  if (holders == holders_.end()) return nullptr;
  for (auto at = holders->second.lower_bound({node_id, ""});
       at != holders->second.end() && at->first == node_id; ++at) {
    const HeldReplica& held = nodes_.find(node_id)->second.replicas.find(at->second)->second;
    if (held.IsReady() && held.facts.location == location) return &held;
  }
  return nullptr;
}

TaskPlacement Directory::PlanTask(const TaskRequest& request, const TaskTarget& target,
                                  const NodeNames& names, absl::Time now, TaskPlan& plan) const {
  TaskPlacement place{.node_id = target.node};
  const absl::StatusOr<NodeNames::Node> node = names.Find(target.node);
  place.error = node.status();
  if (!node.ok()) return place;
  place.node_id = node->id;
  const auto alive = nodes_.find(node->id);
  if (alive != nodes_.end()) {
    place.error = CheckRoom(alive->second.facts, alive->second.pools, target.location,
                            artifacts_.find(request.artifact_id)->second.record.image_bytes);
  }
  if (!place.error.ok()) return place;
  if (const HeldReplica* replica = FindReplicaAt(request.artifact_id, node->id, target.location)) {
    place.replica_id = replica->facts.id;
    return place;
  }
  TaskRecord task{.task_id = absl::StrCat(request.request_id, "-", plan.facts.tasks.size()),
                  .artifact_id = request.artifact_id,
                  .node_id = node->id,
                  .location = target.location,
                  .node_name = node->name,
                  .asked_by = request.asked_by,
                  .traceparent = request.traceparent,
                  .created = now,
                  .updated = now};
  const auto before = tasks_.find(TaskKeyOf(task));
  if (before != tasks_.end() && Settled(before->second, now).state == TaskState::kOpen) {
    place.task = ViewOf(before->second);
    return place;
  }
  plan.facts.tasks.push_back(task);
  place.task = ViewOf(HeldTask{.record = std::move(task)});
  return place;
}

absl::StatusOr<TaskPlan> Directory::PrepareTasks(const TaskRequest& request, absl::Time now) const {
  TC_RETURN_IF_ERROR(DescribeArtifact(request.artifact_id).status());
  const NodeNames names(*this);
  TaskPlan plan;
  std::map<std::string, size_t> planned;  // what is named twice is one
  for (const TaskTarget& target : request.targets) {
    const auto [first, is_new] =
        planned.emplace(absl::StrCat(names.Find(target.node).value_or(NodeNames::Node{.id = target.node}).id,
                                     "\n", target.location.ToString()),
                        plan.places.size());
    plan.places.push_back(is_new ? PlanTask(request, target, names, now, plan) : plan.places[first->second]);
  }
  TC_ASSIGN_OR_RETURN(plan.group, PlanGroup(request, plan));
  return plan;
}

CancelPlan Directory::PrepareCancelTasks(std::string_view artifact_id, const std::vector<TaskTarget>& targets,
                                         absl::Time now) const {
  const NodeNames names(*this);
  std::set<std::pair<std::string, Location>> places;
  for (const TaskTarget& target : targets) {
    places.emplace(names.Find(target.node).value_or(NodeNames::Node{.id = target.node}).id, target.location);
  }
  CancelPlan plan;
  for (TaskView& view : ListReplicationTasks(artifact_id, "", tasks_.size())) {
    const bool open = view.progress == TaskProgress::kWaiting || view.progress == TaskProgress::kRunning;
    if (!open || (!targets.empty() && !places.contains({view.record.node_id, view.record.location}))) {
      continue;
    }
    TaskRecord cancelled = view.record;
    cancelled.cancelled = true;
    cancelled.updated = now;
    plan.facts.tasks.push_back(std::move(cancelled));
    plan.tasks.push_back(std::move(view));
  }
  return plan;
}

void Directory::ApplyTask(const TaskRecord& record, SteadyTime now) {
  const std::string place = TaskKeyOf(record);
  if (const auto before = tasks_.find(place);
      before != tasks_.end() && (record.cancelled || before->second.record.task_id != record.task_id)) {
    EraseTask(place);
  }
  if (record.cancelled) return;
  const auto open = std::make_pair(record.created, place);
  HeldTask& task = tasks_[place];
  task = HeldTask{.record = record};
  tasks_to_settle_.erase(place);
  place_of_task_[record.task_id] = place;
  NoteChange(task);
  if (record.state != TaskState::kOpen) {
    if (auto node = open_tasks_.find(record.node_id); node != open_tasks_.end()) {
      node->second.erase(open);
      if (node->second.empty()) open_tasks_.erase(node);
    }
    return;
  }
  open_tasks_[record.node_id].insert(open);
  if (record.failures > 0 && record.failures <= options_.task_pauses.size()) {
    task.due = now + options_.task_pauses[record.failures - 1];
  }
}

void Directory::EraseTask(const std::string& place) {
  const auto task = tasks_.find(place);
  const TaskRecord& record = task->second.record;
  NoteChange(task->second, /*gone=*/true);
  place_of_task_.erase(record.task_id);
  tasks_to_settle_.erase(place);
  if (auto node = open_tasks_.find(record.node_id); node != open_tasks_.end()) {
    node->second.erase({record.created, place});
    if (node->second.empty()) open_tasks_.erase(node);
  }
  tasks_.erase(task);
}

void Directory::PurgeTasks(absl::Time before) {
  std::vector<std::string> old;
  for (const auto& [place, task] : tasks_) {
    if (task.record.state != TaskState::kOpen && task.record.updated < before) old.push_back(place);
  }
  for (const std::string& place : old) EraseTask(place);
}

void Directory::ReleaseTasks(std::string_view node_id) {
  const auto node = open_tasks_.find(node_id);
  if (node == open_tasks_.end()) return;
  for (const auto& [created, place] : node->second) tasks_.find(place)->second.handed_out = false;
}

void Directory::NoteChange(const HeldTask& task, bool gone) {
  changed_tasks_[TaskKeyOf(task.record)] = {.task = ViewOf(task), .gone = gone};
}

void Directory::NoteChanges(std::string_view node_id) {
  const auto node = open_tasks_.find(node_id);
  if (node == open_tasks_.end()) return;
  for (const auto& [created, place] : node->second) NoteChange(tasks_.find(place)->second);
}

std::vector<TaskChange> Directory::TakeChangedTasks() {
  std::vector<TaskChange> changes;
  for (auto& [place, change] : std::exchange(changed_tasks_, {})) changes.push_back(std::move(change));
  return changes;
}

absl::Status Directory::NoteTasks(const NodeIdentity& identity, const std::vector<TaskReport>& reports) {
  TC_RETURN_IF_ERROR(CheckIdentity(identity));
  for (const TaskReport& report : reports) {
    const auto place = place_of_task_.find(report.task_id);
    if (place == place_of_task_.end()) continue;
    HeldTask& task = tasks_.find(place->second)->second;
    if (task.record.node_id != identity.node_id || task.record.state != TaskState::kOpen ||
        task.ended.has_value()) {
      continue;
    }
    task.handed_out = !report.ended.has_value();
    task.bytes = report.bytes;
    task.bytes_total = report.bytes_total;
    task.ended = report.ended;
    if (task.ended.has_value()) tasks_to_settle_.insert(place->second);
    NoteChange(task);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TaskRecord>> Directory::TakeTasks(const NodeIdentity& identity, SteadyTime now) {
  TC_ASSIGN_OR_RETURN(NodeState * node, FindLive(identity));
  std::vector<TaskRecord> taken;
  const auto open = open_tasks_.find(identity.node_id);
  if (open == open_tasks_.end()) return taken;
  // What the node works on stays with it: one that was made earlier and is due again does not push it out.
  for (const auto& [created, place] : open->second) {
    const HeldTask& task = tasks_.find(place)->second;
    if (task.handed_out) taken.push_back(task.record);
  }
  if (node->draining) return taken;
  const auto take = [&](HeldTask& task) {
    if (task.handed_out || task.ended.has_value() || task.due > now) return;
    task.handed_out = true;
    task.bytes = 0;
    NoteChange(task);
    taken.push_back(task.record);
  };
  // A group waits for all of its GPUs.
  for (const auto& [group_id, group] : groups_) {
    if (!group.over.ok()) continue;
    for (const std::string& task_id : group.plan.task_ids) {
      const auto place = place_of_task_.find(task_id);
      if (place == place_of_task_.end()) continue;
      HeldTask& task = tasks_.find(place->second)->second;
      const bool here = task.record.node_id == identity.node_id;
      if (here && task.record.state == TaskState::kOpen) take(task);
    }
  }
  for (const auto& [created, place] : open->second) {
    if (taken.size() >= options_.tasks_at_once) break;
    take(tasks_.find(place)->second);
  }
  return taken;
}

TaskRecord Directory::Settled(const HeldTask& task, absl::Time now) const {
  TaskRecord record = task.record;
  if (!task.ended.has_value()) return record;
  record.updated = now;
  if (task.ended->ok()) {
    record.state = TaskState::kDone;
    record.error = absl::OkStatus();
    return record;
  }
  ++record.failures;
  record.error = *task.ended;
  const bool last = record.failures > options_.task_pauses.size() || !MayGoBetterAgain(record.error);
  if (last) record.state = TaskState::kFailed;
  return record;
}

DurableFacts Directory::PrepareSettleTasks(absl::Time now) const {
  DurableFacts facts;
  for (const std::string& place : tasks_to_settle_) {
    facts.tasks.push_back(Settled(tasks_.find(place)->second, now));
  }
  return facts;
}

std::string Directory::WhatTaskWaitsFor(const TaskRecord& task) const {
  const auto node = nodes_.find(task.node_id);
  if (node == nodes_.end()) return absl::StrCat("node ", task.node_name, ", which is away");
  if (node->second.draining) return absl::StrCat("node ", task.node_name, ", which drains");
  return task.failures > 0 ? "another attempt, after a pause" : "its turn on its node";
}

TaskView Directory::ViewOf(const HeldTask& task) const {
  TaskView view{.record = Settled(task, task.record.updated),
                .progress = TaskProgress::kWaiting,
                .waiting_for = "",
                .bytes = task.bytes,
                .bytes_total = task.bytes_total};
  switch (view.record.state) {
    case TaskState::kDone:
      view.progress = TaskProgress::kDone;
      return view;
    case TaskState::kFailed:
      view.progress = TaskProgress::kFailed;
      return view;
    case TaskState::kOpen:
      break;
  }
  // One that the node was told of may still be on its way there, and is as good as begun.
  if (task.handed_out) view.progress = TaskProgress::kRunning;
  if (!task.handed_out) view.waiting_for = WhatTaskWaitsFor(view.record);
  return view;
}

std::vector<TaskView> Directory::ListReplicationTasks(std::string_view artifact_id, std::string_view after,
                                                      size_t limit) const {
  std::vector<TaskView> views;
  const std::string first = artifact_id.empty() ? "" : absl::StrCat(artifact_id, "\n");
  auto at = after < first ? tasks_.lower_bound(first) : tasks_.upper_bound(after);
  for (; at != tasks_.end() && views.size() < limit; ++at) {
    if (!artifact_id.empty() && at->second.record.artifact_id != artifact_id) break;
    views.push_back(ViewOf(at->second));
  }
  return views;
}

}  // namespace tensorcast::global_store
