#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status.h"
#include "global_store/service/convert.h"
#include "global_store/service/handlers.h"
#include "rpc/convert/convert.h"

// Tasks of operators, and the groups of nodes among which they are broadcast. A request for tensors also
// makes the tasks for the files that keys bind with them, and a cancellation takes these back.
namespace tensorcast::global_store {
namespace {

// Little beside the time that a group takes to form, and few calls while it does.
constexpr absl::Duration kLookAgainForNodes = absl::Milliseconds(100);

absl::StatusOr<std::vector<TaskTarget>> TargetsOf(
    const google::protobuf::RepeatedPtrField<v1::ReplicateArtifactRequest::Target>& targets) {
  std::vector<TaskTarget> all;
  for (const v1::ReplicateArtifactRequest::Target& target : targets) {
    TC_ASSIGN_OR_RETURN(const Location location, rpc::FromProto(target.location()));
    all.push_back({.node = target.node_id(), .location = location});
  }
  return all;
}

// Lanes of requests. Whether auto means a broadcast is decided with the plan (tasks/groups).
absl::StatusOr<TaskLane> ParseLane(std::string_view lane) {
  if (lane.empty() || lane == "auto") return TaskLane::kAuto;
  if (lane == "nccl") return TaskLane::kNccl;
  if (lane == "pull") return TaskLane::kPull;
  return absl::InvalidArgumentError(
      absl::StrCat("replicate an artifact: there is no lane \"", lane, "\"; choose auto, nccl or pull"));
}

v1::ReplicateArtifactResponse::Result ToProto(const TaskPlacement& place, const TaskTarget& target) {
  v1::ReplicateArtifactResponse::Result result;
  result.set_node_id(place.node_id);
  *result.mutable_location() = rpc::ToProto(target.location);
  result.set_replica_id(place.replica_id);
  if (!place.error.ok()) *result.mutable_error() = rpc::ToProto(place.error);
  if (place.task.has_value()) *result.mutable_task() = global_store::ToProto(*place.task);
  return result;
}

// Where the files are that belong to tensors at these places: on disk with them, else in host memory.
std::vector<TaskTarget> FilePlaces(std::vector<TaskTarget> targets) {
  for (TaskTarget& target : targets) {
    if (target.location.kind == LocationKind::kGpu) target.location = {.kind = LocationKind::kCpu};
  }
  return targets;
}

// The files that keys bind with the artifact are to be at the same nodes. What is wrong with a target is said
// of the artifact's own task.
absl::Status AddFileTasks(const Directory& directory, const TaskRequest& wanted, absl::Time now,
                          DurableFacts& facts) {
  // No broadcast reaches host memory or disks, so files are always pulled.
  TaskRequest request = wanted;
  request.lane = TaskLane::kPull;
  request.targets = FilePlaces(wanted.targets);
  for (const std::string& files_id : directory.catalog().FilesBoundWith(wanted.artifact_id)) {
    // Tasks are named after the request's id and counted in it, so each artifact's tasks take an id of their
    // own.
    request.request_id = NewUuid();
    request.artifact_id = files_id;
    TC_ASSIGN_OR_RETURN(const TaskPlan plan, directory.tasks().Prepare(request, now));
    facts.tasks.insert(facts.tasks.end(), plan.facts.tasks.begin(), plan.facts.tasks.end());
  }
  return absl::OkStatus();
}

// The reverse of AddFileTasks. Files stay wanted at a node where other tensors that they belong to are still
// to come, since both requests share the task of the files.
void CancelFileTasks(const Directory& directory, const std::string& artifact_id,
                     const std::vector<TaskTarget>& targets, absl::Time now, CancelPlan& plan) {
  std::set<std::string> cancelled;
  for (const TaskView& view : plan.tasks) cancelled.insert(view.record.task_id);
  for (const std::string& files_id : directory.catalog().FilesBoundWith(artifact_id)) {
    CancelPlan files = directory.tasks().PrepareCancel(files_id, FilePlaces(targets), now);
    if (files.tasks.empty()) continue;
    std::set<std::string> wanting;  // nodes
    for (const TaskView& other : directory.tasks().List("", "", std::numeric_limits<size_t>::max())) {
      const TaskRecord& task = other.record;
      const bool open = other.progress == TaskProgress::kWaiting || other.progress == TaskProgress::kRunning;
      if (!open || cancelled.contains(task.task_id) || wanting.contains(task.node_id)) continue;
      const std::vector<std::string> bound = directory.catalog().FilesBoundWith(task.artifact_id);
      if (std::ranges::count(bound, files_id) > 0) wanting.insert(task.node_id);
    }
    for (size_t i = 0; i < files.tasks.size(); ++i) {
      if (wanting.contains(files.tasks[i].record.node_id)) continue;
      plan.facts.tasks.push_back(std::move(files.facts.tasks[i]));
      plan.tasks.push_back(std::move(files.tasks[i]));
    }
  }
}

}  // namespace

absl::StatusOr<v1::ReplicateArtifactResponse> Handlers::ReplicateArtifact(
    const RequestContext& context, std::string_view asking, const v1::ReplicateArtifactRequest& request) {
  TaskRequest wanted{.request_id = NewUuid(),
                     .artifact_id = request.artifact_id(),
                     .targets = {},
                     .asked_by = std::string(asking),
                     .traceparent = context.trace.ToTraceparent()};
  TC_ASSIGN_OR_RETURN(wanted.lane, ParseLane(request.lane()));
  TC_ASSIGN_OR_RETURN(wanted.targets, TargetsOf(request.targets()));
  using Tasks = Plan<v1::ReplicateArtifactResponse>;
  return Mutate<v1::ReplicateArtifactResponse>(
      context, "ReplicateArtifact", request.SerializeAsString(),
      [&](const Directory& directory, absl::Time now) -> absl::StatusOr<Tasks> {
        TC_ASSIGN_OR_RETURN(TaskPlan plan, directory.tasks().Prepare(wanted, now));
        TC_RETURN_IF_ERROR(AddFileTasks(directory, wanted, now, plan.facts));
        Tasks tasks{.change = {.facts = std::move(plan.facts)}};
        for (size_t i = 0; i < plan.places.size(); ++i) {
          *tasks.response.add_results() = ToProto(plan.places[i], wanted.targets[i]);
        }
        // The group is soft state, and names tasks: it begins when these are durable.
        if (plan.group.has_value()) {
          tasks.change.also_apply = [group = *std::move(plan.group)](Directory& applied) {
            applied.tasks().groups().Add(group);
          };
        }
        return tasks;
      });
}

absl::StatusOr<v1::JoinBroadcastResponse> Handlers::JoinBroadcast(const RequestContext&,
                                                                  const v1::JoinBroadcastRequest& request) {
  const NodeIdentity node = FromProto(request.node());
  v1::JoinBroadcastResponse response;
  // A node that does not take part ends the group for all of its nodes, which then pull.
  if (request.has_error()) {
    TC_RETURN_IF_ERROR(coordinator_.WithDirectory([&](Directory& directory, SteadyTime now) {
      return directory.tasks().groups().End(node, request.group_id(), rpc::FromProto(request.error()), now);
    }));
    return response;
  }
  std::optional<GroupRoot> brought;
  if (request.has_root()) brought = FromProto(request.root());
  TC_ASSIGN_OR_RETURN(const std::optional<GroupRoot> root,
                      coordinator_.WithDirectory([&](Directory& directory, SteadyTime now) {
                        return directory.tasks().groups().Join(node, request.group_id(), brought, now);
                      }));
  // The root is known once all nodes have come. Until then each of them asks again.
  if (root.has_value()) {
    *response.mutable_root() = global_store::ToProto(*root);
  } else {
    *response.mutable_retry_after() = rpc::ToProto(kLookAgainForNodes);
  }
  return response;
}

absl::StatusOr<v1::ListReplicationTasksResponse> Handlers::ListReplicationTasks(
    const RequestContext&, const v1::ListReplicationTasksRequest& request) {
  TC_ASSIGN_OR_RETURN(const size_t page, PageSize(request.page_size()));
  const std::vector<TaskView> views = coordinator_.WithDirectory([&](Directory& directory, SteadyTime) {
    return directory.tasks().List(request.artifact_id(), request.page_token(), page);
  });
  v1::ListReplicationTasksResponse response;
  size_t bytes = 0;
  for (const TaskView& view : views) {
    v1::ReplicationTask& task = *response.add_tasks() = global_store::ToProto(view);
    bytes += task.ByteSizeLong();
    // A task may tell a long error.
    if (bytes >= kPageBytes) break;
  }
  const auto listed = static_cast<size_t>(response.tasks_size());
  if (listed == page || listed < views.size()) {
    response.set_next_page_token(TaskKeyOf(views[listed - 1].record));
  }
  return response;
}

void Handlers::WatchReplicationTasks(
    const RequestContext& context, const v1::WatchReplicationTasksRequest& request,
    const std::shared_ptr<rpc::StreamWriter<v1::WatchReplicationTasksResponse>>& writer,
    const rpc::Finisher& finisher) {
  auto watcher = std::make_shared<TaskWatcher>();
  watcher->artifact_id = request.artifact_id();
  watcher->on_change = [writer](const TaskChange& change) {
    v1::WatchReplicationTasksResponse message;
    *message.mutable_task() = global_store::ToProto(change.task);
    message.set_gone(change.gone);
    writer->WriteLatest(std::move(message), TaskKeyOf(change.task.record));
  };
  // Without a name, so it keeps its place.
  watcher->on_listed = [writer] {
    v1::WatchReplicationTasksResponse message;
    message.set_listed(true);
    writer->WriteLatest(std::move(message));
  };
  RunWatch(context, finisher, std::move(watcher), &Coordinator::WatchReplicationTasks,
           &Coordinator::UnwatchTasks);
}

absl::StatusOr<v1::CancelReplicationTasksResponse> Handlers::CancelReplicationTasks(
    const RequestContext& context, const v1::CancelReplicationTasksRequest& request) {
  TC_ASSIGN_OR_RETURN(const std::vector<TaskTarget> targets, TargetsOf(request.targets()));
  using Cancelled = Plan<v1::CancelReplicationTasksResponse>;
  return Mutate<v1::CancelReplicationTasksResponse>(
      context, "CancelReplicationTasks", request.SerializeAsString(),
      [&](const Directory& directory, absl::Time now) -> absl::StatusOr<Cancelled> {
        CancelPlan plan = directory.tasks().PrepareCancel(request.artifact_id(), targets, now);
        CancelFileTasks(directory, request.artifact_id(), targets, now, plan);
        Cancelled cancelled{.change = {.facts = std::move(plan.facts)}};
        for (const TaskView& view : plan.tasks) *cancelled.response.add_tasks() = global_store::ToProto(view);
        return cancelled;
      });
}

}  // namespace tensorcast::global_store
