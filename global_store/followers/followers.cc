#include "global_store/followers/followers.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast::global_store {
namespace {

UnfollowPlan Removing(std::vector<FollowerRecord> followers) {
  UnfollowPlan plan;
  for (FollowerRecord& follower : followers) {
    plan.followers.push_back(follower);
    follower.removed = true;
    plan.facts.followers.push_back(std::move(follower));
  }
  return plan;
}

bool IsOpen(const TaskView& task) {
  return task.progress == TaskProgress::kWaiting || task.progress == TaskProgress::kRunning;
}

// Files are on disk with their tensors, else in host memory.
Location FilePlaceOf(const Location& location) {
  return location.kind == LocationKind::kGpu ? Location{.kind = LocationKind::kCpu} : location;
}

}  // namespace

std::string FollowerIdOf(const FollowerRecord& follower) {
  return absl::StrCat(follower.key, "\n", follower.node_id, "\n", follower.location.ToString());
}

absl::StatusOr<FollowPlan> Followers::Prepare(const FollowRequest& request, absl::Time now) const {
  TC_RETURN_IF_ERROR(CheckKeyName(request.key));
  FollowPlan plan;
  const std::vector<absl::StatusOr<NamedNode>> nodes = tasks_.FindNodes(request.targets);
  std::set<std::string> planned;
  for (size_t i = 0; i < nodes.size(); ++i) {
    FollowPlan::Place& place = plan.places.emplace_back();
    place.error = nodes[i].status();
    if (!nodes[i].ok()) continue;
    place.follower = {.key = request.key,
                      .node_id = nodes[i]->id,
                      .location = request.targets[i].location,
                      .node_name = nodes[i]->name,
                      .asked_by = request.asked_by,
                      .created = now};
    const std::string id = FollowerIdOf(place.follower);
    if (const auto before = followers_.find(id); before != followers_.end()) {
      place.follower = before->second.record;
    } else if (planned.insert(id).second) {  // what is named twice is one
      plan.facts.followers.push_back(place.follower);
    }
  }
  return plan;
}

UnfollowPlan Followers::PrepareRemove(std::string_view key, const std::vector<TaskTarget>& targets,
                                      size_t limit) const {
  // The names of now: the record of a follower has the name that its node had at that time. No location is
  // checked, since a follower at a GPU that is gone must be removable.
  std::vector<TaskTarget> nodes = targets;
  for (TaskTarget& target : nodes) target.location = {};
  const std::vector<absl::StatusOr<NamedNode>> found = tasks_.FindNodes(nodes);
  const auto names = [&](size_t i, const FollowerRecord& record) {
    if (targets[i].location != record.location) return false;
    if (found[i].ok()) return found[i]->id == record.node_id;
    return targets[i].node == record.node_id || targets[i].node == record.node_name;
  };
  std::vector<FollowerRecord> removed;
  const std::string first = absl::StrCat(key, "\n");
  for (auto at = followers_.lower_bound(first); at != followers_.end() && removed.size() < limit; ++at) {
    const FollowerRecord& record = at->second.record;
    if (record.key != key) break;
    bool named = targets.empty();
    for (size_t i = 0; i < targets.size() && !named; ++i) named = names(i, record);
    if (named) removed.push_back(record);
  }
  return Removing(std::move(removed));
}

UnfollowPlan Followers::PrepareForget(std::string_view node_id) const {
  std::vector<FollowerRecord> removed;
  if (const auto node = ids_of_nodes_.find(node_id); node != ids_of_nodes_.end()) {
    for (const std::string& id : node->second) removed.push_back(followers_.find(id)->second.record);
  }
  return Removing(std::move(removed));
}

void Followers::Apply(const FollowerRecord& record, SteadyTime now) {
  const std::string id = FollowerIdOf(record);
  if (!record.removed) {
    Follower& follower = followers_[id];
    follower.record = record;
    ids_of_nodes_[record.node_id].insert(id);
    // A new follower tries again where an earlier task has ended without a replica.
    return Refresh(follower, /*again=*/true, now);
  }
  const auto found = followers_.find(id);
  if (found == followers_.end()) return;
  for (const std::string& place : found->second.wanted) Release(place);
  const auto node = ids_of_nodes_.find(record.node_id);
  node->second.erase(id);
  if (node->second.empty()) ids_of_nodes_.erase(node);
  followers_.erase(found);
}

void Followers::NoteKey(std::string_view key, SteadyTime now) {
  const std::string first = absl::StrCat(key, "\n");
  for (auto at = followers_.lower_bound(first); at != followers_.end() && at->second.record.key == key;
       ++at) {
    Refresh(at->second, /*again=*/false, now);
  }
}

void Followers::NoteInventory(std::string_view node_id, bool registered, SteadyTime now) {
  const auto node = ids_of_nodes_.find(node_id);
  if (node == ids_of_nodes_.end()) return;
  for (const std::string& id : node->second) Refresh(followers_.find(id)->second, registered, now);
}

// Nothing is wanted while the key is not bound, and no artifact that is deleted: a later binding, which
// NoteKey reports, makes the tasks then.
std::vector<Followers::Wanted> Followers::WantedBy(const FollowerRecord& record) const {
  std::vector<Wanted> wanted;
  const absl::StatusOr<KeyRecord> key = catalog_.ResolveKey(record.key);
  if (!key.ok()) return wanted;
  const auto add = [&](const std::string& artifact_id, const Location& location, std::string_view what) {
    if (artifact_id.empty() || catalog_.Find(artifact_id) == nullptr) return;
    // The id says what it is for, so that a node which worked on it when the store restarted goes on with it.
    TaskRecord task{.task_id = absl::StrCat("follow-", key->revision, what, "-", FollowerIdOf(record)),
                    .artifact_id = artifact_id,
                    .node_id = record.node_id,
                    .location = location,
                    .node_name = record.node_name,
                    .asked_by = record.asked_by,
                    .created = key->updated,
                    .updated = key->updated,
                    .follows = record.key};
    const bool there = inventory_.FindOf(artifact_id, record.node_id, [&](const HeldReplica& held) {
      return held.IsReady() && held.facts.location == location;
    }) != nullptr;
    wanted.push_back({.task = std::move(task), .there = there});
  };
  add(key->artifact_id, record.location, "");
  add(key->files_id, FilePlaceOf(record.location), "-files");
  return wanted;
}

// Several followers may want one place: two keys can name one artifact, and the files of several GPUs of a
// node have one place in host memory. Only the last of the followers takes the task with it.
void Followers::Release(const std::string& place) {
  const auto wanted = wanted_.find(place);
  if (--wanted->second > 0) return;
  wanted_.erase(wanted);
  tasks_.EraseFollowed(place);
}

// Makes the tasks at a follower's places fit the newest version: tasks for places that are newly wanted are
// made, tasks for a version that is not wanted any more are cancelled, and a running task stays. In `before`
// remain the places that are not wanted any more.
void Followers::Refresh(Follower& follower, bool again, SteadyTime now) {
  std::set<std::string> before = std::exchange(follower.wanted, {});
  for (Wanted& wanted : WantedBy(follower.record)) {
    const std::string place = TaskKeyOf(wanted.task);
    if (!follower.wanted.insert(place).second) continue;
    const bool is_new = before.erase(place) == 0;
    if (is_new) ++wanted_[place];
    const std::optional<TaskView> task = tasks_.FindAt(place);
    if (wanted.there) {
      // The node came back with it, or got it in another way: it need not be told.
      if (task.has_value() && task->progress == TaskProgress::kWaiting) tasks_.EraseFollowed(place);
      continue;
    }
    if (task.has_value()) {
      // A task that has ended without a replica is left alone, unless the follower is new or its node has
      // just registered: it has failed for good, or the replica was evicted.
      if (IsOpen(*task) || !(again || is_new)) continue;
      // What is reported of the earlier attempt is not taken for this one.
      absl::StrAppend(&wanted.task.task_id, "-", ++attempts_);
    }
    tasks_.ApplyFollowed(wanted.task, now);
  }
  for (const std::string& place : before) Release(place);
}

FollowerView Followers::ViewOf(const FollowerRecord& record) const {
  FollowerView view{.record = record};
  const absl::StatusOr<KeyRecord> key = catalog_.ResolveKey(record.key);
  if (!key.ok()) return view;
  view.newest_revision = key->revision;
  view.artifact_id = key->artifact_id;
  const auto has = [&](const std::string& artifact_id) {
    return inventory_.FindOf(artifact_id, record.node_id, [&](const HeldReplica& held) {
      return held.IsReady() && held.facts.location == record.location;
    }) != nullptr;
  };
  if (has(key->artifact_id)) {
    view.revision = key->revision;
  } else {
    // The newest first.
    const auto kept = std::ranges::find_if(
        key->earlier, [&](const KeyVersion& version) { return has(version.artifact_id); });
    if (kept != key->earlier.end()) view.revision = kept->revision;
  }
  TaskRecord place{.artifact_id = key->artifact_id, .node_id = record.node_id, .location = record.location};
  view.task = tasks_.FindAt(TaskKeyOf(place));
  return view;
}

std::vector<FollowerView> Followers::List(std::string_view key, std::string_view after, size_t limit) const {
  std::vector<FollowerView> views;
  const std::string first = key.empty() ? "" : absl::StrCat(key, "\n");
  auto at = after < first ? followers_.lower_bound(first) : followers_.upper_bound(after);
  for (; at != followers_.end() && views.size() < limit; ++at) {
    if (!key.empty() && at->second.record.key != key) break;
    views.push_back(ViewOf(at->second.record));
  }
  return views;
}

}  // namespace tensorcast::global_store
