#include "global_store/tasks/tasks.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast::global_store {
namespace {

// Whether another attempt may succeed. These codes say that the request makes no sense at that node, however
// often it is made.
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

}  // namespace

std::string TaskKeyOf(const TaskRecord& task) {
  return absl::StrCat(task.artifact_id, "\n", task.node_id, "\n", task.location.ToString());
}

TargetNodes Tasks::KnownNodes() const {
  TargetNodes nodes;
  for (const auto& [place, task] : tasks_) nodes.Add(task.record.node_id, task.record.node_name);
  nodes.AddKnown(nodes_, inventory_);
  return nodes;
}

TaskPlacement Tasks::PlanOne(const TaskRequest& request, const TaskTarget& target, uint64_t image_bytes,
                             const TargetNodes& nodes, absl::Time now, TaskPlan& plan) const {
  TaskPlacement place{.node_id = target.node};
  const absl::StatusOr<NamedNode> node = nodes.Find(target.node);
  place.error = node.status();
  if (!node.ok()) return place;
  place.node_id = node->id;
  // A node that is away is not checked: the task waits until the node is back.
  if (const Node* alive = nodes_.Find(node->id)) {
    place.error = CheckRoom(*alive, target.location, image_bytes);
  }
  if (!place.error.ok()) return place;
  if (const HeldReplica* replica =
          inventory_.FindOf(request.artifact_id, node->id, [&](const HeldReplica& held) {
            return held.IsReady() && held.facts.location == target.location;
          })) {
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
  // Two requests for one place share the task. An attempt that has ended counts as ended here, though that is
  // not durable yet.
  const auto before = tasks_.find(TaskKeyOf(task));
  // A task of a follower ends with the next version, so a request for this one makes its own.
  if (before != tasks_.end() && before->second.record.follows.empty() &&
      Settled(before->second, now).state == TaskState::kOpen) {
    place.task = ViewOf(before->second);
    return place;
  }
  plan.facts.tasks.push_back(task);
  place.task = ViewOf(HeldTask{.record = std::move(task)});
  return place;
}

absl::StatusOr<TaskPlan> Tasks::Prepare(const TaskRequest& request, absl::Time now) const {
  TC_ASSIGN_OR_RETURN(const Catalog::Artifact* artifact, catalog_.Get(request.artifact_id));
  const uint64_t image_bytes = artifact->record.image_bytes;
  const TargetNodes nodes = KnownNodes();
  TaskPlan plan;
  std::map<std::string, size_t> planned;  // what is named twice is one
  for (const TaskTarget& target : request.targets) {
    const auto [first, is_new] = planned.emplace(
        absl::StrCat(nodes.IdOf(target.node), "\n", target.location.ToString()), plan.places.size());
    plan.places.push_back(is_new ? PlanOne(request, target, image_bytes, nodes, now, plan)
                                 : plan.places[first->second]);
  }
  TC_ASSIGN_OR_RETURN(plan.group, groups_.Plan(request, image_bytes, plan.facts.tasks));
  return plan;
}

std::vector<absl::StatusOr<NamedNode>> Tasks::FindNodes(const std::vector<TaskTarget>& targets) const {
  const TargetNodes nodes = KnownNodes();
  std::vector<absl::StatusOr<NamedNode>> found;
  for (const TaskTarget& target : targets) {
    absl::StatusOr<NamedNode>& node = found.emplace_back(nodes.Find(target.node));
    if (!node.ok()) continue;
    const Node* alive = nodes_.Find(node->id);
    if (alive == nullptr) continue;
    // Of no particular size: whether there is room is seen with each version.
    const absl::Status there = CheckRoom(*alive, target.location, /*image_bytes=*/0);
    if (!there.ok()) node = there;
  }
  return found;
}

std::optional<TaskView> Tasks::FindAt(const std::string& place) const {
  const auto task = tasks_.find(place);
  if (task == tasks_.end()) return std::nullopt;
  return ViewOf(task->second);
}

void Tasks::ApplyFollowed(const TaskRecord& record, SteadyTime now) {
  const auto before = tasks_.find(TaskKeyOf(record));
  // What an operator requested goes on; the replica that it makes is what the follower wants.
  if (before != tasks_.end() && before->second.record.follows.empty() &&
      before->second.record.state == TaskState::kOpen) {
    return;
  }
  Apply(record, now);
}

void Tasks::EraseFollowed(const std::string& place) {
  const auto task = tasks_.find(place);
  if (task != tasks_.end() && !task->second.record.follows.empty()) Erase(place);
}

void Tasks::SettleFollowed(SteadyTime now) {
  for (const std::string& place : std::exchange(followed_ends_, {})) {
    const auto task = tasks_.find(place);
    // Another task may have come to its place.
    if (task == tasks_.end() || !task->second.ended.has_value() || task->second.record.follows.empty()) {
      continue;
    }
    const TaskRecord settled = Settled(task->second, task->second.record.updated);
    Apply(settled, now);
  }
}

CancelPlan Tasks::PrepareCancel(std::string_view artifact_id, const std::vector<TaskTarget>& targets,
                                absl::Time now) const {
  const TargetNodes nodes = KnownNodes();
  std::set<std::pair<std::string, Location>> places;
  for (const TaskTarget& target : targets) places.emplace(nodes.IdOf(target.node), target.location);
  CancelPlan plan;
  for (TaskView& view : List(artifact_id, "", tasks_.size())) {
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

// A durable task moves in a circle. Apply opens it, Take hands it to its node, and Note records how the
// attempt ended. The coordinator commits what PrepareSettle says, which comes back through Apply: the task is
// done, has failed, or is open again after a pause. A task of a follower moves in the same circle without the
// commit (SettleFollowed).
void Tasks::Apply(const TaskRecord& record, SteadyTime now) {
  const std::string place = TaskKeyOf(record);
  if (const auto before = tasks_.find(place);
      // A place has one task: a new task takes the place of one that ended, and a cancelled one goes.
      before != tasks_.end() && (record.cancelled || before->second.record.task_id != record.task_id)) {
    Erase(place);
  }
  if (record.cancelled) return;
  // The soft state of the previous attempt (handed out, progress, its end) goes with the previous record.
  HeldTask& task = tasks_[place];
  task = HeldTask{.record = record};
  to_settle_.erase(place);
  place_of_[record.task_id] = place;
  NoteChange(task);
  if (record.state != TaskState::kOpen) return CloseAt(record, place);
  open_[record.node_id].emplace(record.created, place);
  if (record.failures > 0 && record.failures <= options_.pauses.size()) {
    task.due = now + options_.pauses[record.failures - 1];
  }
}

void Tasks::CloseAt(const TaskRecord& record, const std::string& place) {
  const auto node = open_.find(record.node_id);
  if (node == open_.end()) return;
  node->second.erase({record.created, place});
  if (node->second.empty()) open_.erase(node);
}

void Tasks::Erase(const std::string& place) {
  const auto task = tasks_.find(place);
  const TaskRecord& record = task->second.record;
  NoteChange(task->second, /*gone=*/true);
  place_of_.erase(record.task_id);
  to_settle_.erase(place);
  CloseAt(record, place);
  tasks_.erase(task);
}

void Tasks::EraseOf(const std::string& artifact_id) {
  while (true) {
    const auto task = tasks_.lower_bound(artifact_id + "\n");
    if (task == tasks_.end() || task->second.record.artifact_id != artifact_id) return;
    Erase(std::string(task->first));
  }
}

void Tasks::Purge(absl::Time before) {
  std::vector<std::string> old;
  for (const auto& [place, task] : tasks_) {
    if (task.record.state != TaskState::kOpen && task.record.updated < before) old.push_back(place);
  }
  for (const std::string& place : old) Erase(place);
}

void Tasks::NoteChange(const HeldTask& task, bool gone) {
  changed_[TaskKeyOf(task.record)] = {.task = ViewOf(task), .gone = gone};
}

void Tasks::NoteNode(std::string_view node_id) {
  const auto node = open_.find(node_id);
  if (node == open_.end()) return;
  for (const auto& [created, place] : node->second) NoteChange(tasks_.find(place)->second);
}

void Tasks::NoteNodeGone(std::string_view node_id) {
  if (const auto node = open_.find(node_id); node != open_.end()) {
    for (const auto& [created, place] : node->second) tasks_.find(place)->second.handed_out = false;
  }
  groups_.Leave(node_id);
  NoteNode(node_id);
}

void Tasks::Tick(SteadyTime now) {
  SettleFollowed(now);
  groups_.Expire(now, [this](const std::string& task_id) {
    const HeldTask* task = FindById(task_id);
    return task != nullptr && task->record.state == TaskState::kOpen;
  });
}

std::vector<TaskChange> Tasks::TakeChanged() {
  std::vector<TaskChange> changes;
  for (auto& [place, change] : std::exchange(changed_, {})) changes.push_back(std::move(change));
  return changes;
}

Tasks::HeldTask* Tasks::FindById(std::string_view task_id) {
  const auto place = place_of_.find(task_id);
  return place == place_of_.end() ? nullptr : &tasks_.find(place->second)->second;
}

uint64_t Tasks::CountOpen() const {
  uint64_t open = 0;
  for (const auto& [node_id, tasks] : open_) open += tasks.size();
  return open;
}

absl::Status Tasks::Note(const NodeIdentity& identity, const std::vector<TaskReport>& reports) {
  TC_RETURN_IF_ERROR(nodes_.CheckIdentity(identity));
  for (const TaskReport& report : reports) {
    HeldTask* task = FindById(report.task_id);
    // A second end of one attempt adds nothing: the first one is about to become durable.
    if (task == nullptr || task->record.node_id != identity.node_id ||
        task->record.state != TaskState::kOpen || task->ended.has_value()) {
      continue;
    }
    task->handed_out = !report.ended.has_value();
    task->bytes = report.bytes;
    task->bytes_total = report.bytes_total;
    task->ended = report.ended;
    if (task->ended.has_value()) {
      std::string place = TaskKeyOf(task->record);
      if (task->record.follows.empty()) {
        to_settle_.insert(std::move(place));
      } else {
        followed_ends_.push_back(std::move(place));
      }
    }
    NoteChange(*task);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TaskRecord>> Tasks::Take(const NodeIdentity& identity, SteadyTime now) {
  TC_ASSIGN_OR_RETURN(const Node* node, nodes_.FindLive(identity));
  SettleFollowed(now);
  std::vector<TaskRecord> taken;
  const auto open = open_.find(identity.node_id);
  if (open == open_.end()) return taken;
  // The answer is complete: the node cancels each of its tasks that is not in it.
  // What the node works on stays with it: one that was made earlier and is due again does not push it out.
  for (const auto& [created, place] : open->second) {
    const HeldTask& task = tasks_.find(place)->second;
    if (task.handed_out) taken.push_back(task.record);
  }
  // A node that drains finishes what it works on, and begins nothing.
  if (node->draining) return taken;
  const auto take = [&](HeldTask& task) {
    if (task.handed_out || task.ended.has_value() || task.due > now) return;
    task.handed_out = true;
    task.bytes = 0;
    NoteChange(task);
    taken.push_back(task.record);
  };
  // A group waits for all of its GPUs, so its tasks are handed out beyond the limit: one that waited for its
  // turn would hold up every node of the group.
  groups_.ForEachTask([&](const std::string& task_id) {
    HeldTask* task = FindById(task_id);
    if (task == nullptr || task->record.node_id != identity.node_id) return;
    if (task->record.state == TaskState::kOpen) take(*task);
  });
  for (const auto& [created, place] : open->second) {
    if (taken.size() >= options_.at_once) break;
    take(tasks_.find(place)->second);
  }
  return taken;
}

TaskRecord Tasks::Settled(const HeldTask& task, absl::Time now) const {
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
  // A task fails for good after the last pause, or where another attempt cannot help.
  const bool last = record.failures > options_.pauses.size() || !MayGoBetterAgain(record.error);
  if (last) record.state = TaskState::kFailed;
  return record;
}

DurableFacts Tasks::PrepareSettle(absl::Time now) const {
  DurableFacts facts;
  for (const std::string& place : to_settle_) facts.tasks.push_back(Settled(tasks_.find(place)->second, now));
  return facts;
}

std::string Tasks::WhatItWaitsFor(const TaskRecord& task) const {
  const Node* node = nodes_.Find(task.node_id);
  if (node == nullptr) return absl::StrCat("node ", task.node_name, ", which is away");
  if (node->draining) return absl::StrCat("node ", task.node_name, ", which drains");
  return task.failures > 0 ? "another attempt, after a pause" : "its turn on the node";
}

TaskView Tasks::ViewOf(const HeldTask& task) const {
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
  if (!task.handed_out) view.waiting_for = WhatItWaitsFor(view.record);
  return view;
}

std::vector<TaskView> Tasks::List(std::string_view artifact_id, std::string_view after, size_t limit) const {
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
