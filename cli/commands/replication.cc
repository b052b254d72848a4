#include "cli/commands/replication.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/commands/texts.h"
#include "cli/output/output.h"
#include "core/artifact/manifest.h"
#include "core/replica/replica.h"
#include "rpc/convert/convert.h"

namespace tensorcast::cli {
namespace {

absl::Status AddTarget(const std::string& node, const std::string& location, ReplicationTargets* targets) {
  TC_ASSIGN_OR_RETURN(const Location parsed, Location::Parse(location));
  ReplicationTarget* target = targets->Add();
  target->set_node_id(node);
  *target->mutable_location() = rpc::ToProto(parsed);
  return absl::OkStatus();
}

struct ListFlags {
  std::string artifact;  // a key or an id; empty: all
};

// One artifact needs no column for its id.
std::string TasksText(const v1::ListReplicationTasksResponse& listed, bool of_one) {
  Table table(of_one ? std::vector<std::string>{"place", "state", "last error"}
                     : std::vector<std::string>{"artifact", "place", "state", "last error"});
  for (const v1::ReplicationTask& task : listed.tasks()) {
    std::vector<std::string> row = {PlaceText(task), StateText(task), ErrorText(task)};
    if (!of_one) row.insert(row.begin(), task.artifact_id());
    table.Add(std::move(row));
  }
  return table.ToString();
}

absl::Status ListTasks(const CommonFlags& common, const ListFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  const RequestContext context = InterruptibleContext();
  std::string artifact_id;
  if (!flags.artifact.empty()) {
    TC_ASSIGN_OR_RETURN(artifact_id, ConfirmedArtifactId(*admin, context, flags.artifact));
  }
  TC_ASSIGN_OR_RETURN(const v1::ListReplicationTasksResponse listed,
                      admin->ListReplicationTasks(context, artifact_id));
  return Show(common, listed, [&] { return TasksText(listed, /*of_one=*/!artifact_id.empty()); });
}

absl::Status CancelTasks(const CommonFlags& common, const PlaceFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  const RequestContext context = InterruptibleContext();
  v1::CancelReplicationTasksRequest request;
  TC_ASSIGN_OR_RETURN(*request.mutable_artifact_id(), ConfirmedArtifactId(*admin, context, flags.artifact));
  // Without targets the request has none, and the global store cancels all tasks of the artifact.
  if (!flags.to.empty()) {
    // Names and gpu:all are resolved here, from what the global store knows now.
    TC_ASSIGN_OR_RETURN(const v1::GetClusterStatusResponse cluster, admin->GetClusterStatus(context));
    TC_RETURN_IF_ERROR(Annotate(AddNamed(cluster, flags, request.mutable_targets()),
                                absl::StrCat("replication cancel ", flags.artifact)));
  }
  TC_ASSIGN_OR_RETURN(const v1::CancelReplicationTasksResponse cancelled,
                      admin->CancelReplicationTasks(context, request));
  return Show(common, cancelled, [&] {
    std::string text = cancelled.tasks().empty() ? "no unfinished task was found\n" : "";
    for (const v1::ReplicationTask& task : cancelled.tasks()) {
      // Its files have tasks of their own, which are cancelled with it.
      const bool files = task.artifact_id() != request.artifact_id();
      absl::StrAppend(&text, "cancelled ", PlaceText(task), files ? " (the files)\n" : "\n");
    }
    return text;
  });
}

struct FollowerListFlags {
  std::string key;  // empty: all
};

std::string FollowersText(const v1::ListFollowersResponse& listed) {
  Table table({"key", "place", "newest revision", "own revision", "state"});
  for (const v1::Follower& follower : listed.followers()) {
    const auto revision = [](uint64_t number) { return number == 0 ? "-" : absl::StrCat(number); };
    table.Add({follower.key(), PlaceText(follower), revision(follower.newest_revision()),
               revision(follower.revision()), StateText(follower)});
  }
  return table.ToString();
}

absl::Status ListFollowers(const CommonFlags& common, const FollowerListFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto versions, ConnectVersions(common));
  TC_ASSIGN_OR_RETURN(const v1::ListFollowersResponse listed,
                      versions->ListFollowers(InterruptibleContext(), flags.key));
  return Show(common, listed, [&] { return FollowersText(listed); });
}

absl::Status RemoveFollowers(const CommonFlags& common, const PlaceFlags& flags) {
  const RequestContext context = InterruptibleContext();
  ReplicationTargets named;
  if (!flags.to.empty()) {
    TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
    TC_ASSIGN_OR_RETURN(const v1::GetClusterStatusResponse cluster, admin->GetClusterStatus(context));
    TC_RETURN_IF_ERROR(
        Annotate(AddNamed(cluster, flags, &named), absl::StrCat("follower rm ", flags.artifact)));
  }
  TC_ASSIGN_OR_RETURN(const client::VersionsClient::Targets targets, FollowTargets(named));
  TC_ASSIGN_OR_RETURN(const auto versions, ConnectVersions(common));
  TC_ASSIGN_OR_RETURN(const v1::UnfollowKeyResponse removed,
                      versions->UnfollowKey(context, flags.artifact, targets));
  if (removed.followers().empty()) {
    return absl::NotFoundError(
        absl::StrCat("follower rm ", flags.artifact, ": no place", flags.to.empty() ? "" : " in --to",
                     " follows the key; `tensorcast follower ls` lists the followers"));
  }
  return Show(common, removed, [&] {
    std::string text;
    for (const v1::Follower& follower : removed.followers()) {
      absl::StrAppend(&text, PlaceText(follower), " no longer follows ", follower.key(), "\n");
    }
    return text;
  });
}

void AddFollowerListFlags(Flags& flags, FollowerListFlags& values) {
  flags.Add("key", values.key, "A key, to list only the followers of this key");
}

void AddFollowerPlaceFlags(Flags& flags, PlaceFlags& values) {
  flags.Add("key", values.artifact, "A key", {.required = true, .not_empty = true});
  flags.Add("--to", values.to,
            "Places as NODE or NODE:LOCATION, separated by commas; default: all followers of the key",
            {.not_empty = true});
  flags.Add("--device", values.device,
            "Location of places that name only a node: gpu:N, gpu:all, cpu or disk", {.show_default = true});
}

void AddListFlags(Flags& flags, ListFlags& values) {
  flags.Add("artifact", values.artifact, "A key or an artifact id, to list only the tasks of this artifact");
}

}  // namespace

void AddPlaceFlags(Flags& flags, PlaceFlags& values) {
  flags.Add("artifact", values.artifact, "A key, or an artifact id (tc2:...)", {.required = true});
  flags.Add("--to", values.to,
            "Targets as NODE or NODE:LOCATION, separated by commas; NODE is a name or an id",
            {.not_empty = true});
  flags.Add("--device", values.device,
            "Location of targets that name only a node: gpu:N, gpu:all, cpu or disk", {.show_default = true});
}

absl::Status AddPlaces(const v1::GetClusterStatusResponse& cluster, const std::string& node,
                       const std::string& location, ReplicationTargets* targets) {
  if (location != kAllGpus) return AddTarget(node, location, targets);
  // gpu:all is resolved here, from what the node has now: a task is for one place, and a GPU that comes later
  // gets none.
  for (const v1::Node& one : cluster.nodes()) {
    if (one.node_id() != node && one.name() != node) continue;
    for (const v1::Device& device : one.devices()) {
      TC_RETURN_IF_ERROR(AddTarget(node, absl::StrCat("gpu:", device.ordinal()), targets));
    }
    if (!one.devices().empty()) return absl::OkStatus();
    return absl::NotFoundError(absl::StrCat("node ", node, " has no GPU; name another location"));
  }
  return absl::NotFoundError(
      absl::StrCat("no registered node has the name or id ", node, "; `tensorcast node ls` lists the nodes"));
}

absl::Status AddNamed(const v1::GetClusterStatusResponse& cluster, const PlaceFlags& flags,
                      ReplicationTargets* targets) {
  for (const std::string& list : flags.to) {
    for (const std::string_view place : absl::StrSplit(list, ',')) {
      // The first colon ends the name, since a location may have another one (gpu:0).
      const size_t colon = place.find(':');
      const std::string node(place.substr(0, colon));
      if (node.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "--to ", list,
            ": a target has no node; write NODE or NODE:LOCATION, as in node-1 or node-1:gpu:0"));
      }
      const std::string location =
          colon == std::string_view::npos ? flags.device : std::string(place.substr(colon + 1));
      TC_RETURN_IF_ERROR(Annotate(AddPlaces(cluster, node, location, targets), absl::StrCat("--to ", list)));
    }
  }
  return absl::OkStatus();
}

// By the global store itself: what a daemon remembers of a key may be older than its last binding, and tasks
// are made for the artifact and not for the key.
absl::StatusOr<std::string> ConfirmedArtifactId(client::AdminClient& admin, const RequestContext& context,
                                                const std::string& artifact) {
  if (IsArtifactId(artifact)) return artifact;
  TC_ASSIGN_OR_RETURN(const v1::ResolveKeyResponse resolved,
                      admin.ResolveKey(context, artifact, /*confirmed=*/true));
  return resolved.key().artifact_id();
}

absl::StatusOr<client::VersionsClient::Targets> FollowTargets(const ReplicationTargets& targets) {
  client::VersionsClient::Targets all;
  for (const ReplicationTarget& target : targets) {
    TC_ASSIGN_OR_RETURN(const Location location, rpc::FromProto(target.location()));
    all.emplace_back(target.node_id(), location);
  }
  return all;
}

absl::StatusOr<std::unique_ptr<client::VersionsClient>> ConnectVersions(const CommonFlags& common) {
  TC_ASSIGN_OR_RETURN(const client::ClientOptions options, ConfiguredClient(common));
  return client::VersionsClient::Connect(options);
}

std::string PlaceText(const v1::Follower& follower) {
  return absl::StrCat(follower.node_name(), ":", LocationText(follower.location()));
}

std::string StateText(const v1::Follower& follower) {
  if (follower.newest_revision() == 0) return "the key is not bound yet";
  if (follower.revision() == follower.newest_revision()) {
    return absl::StrCat("at revision ", follower.revision());
  }
  if (!follower.has_task()) return "waits for the next version, or for the next start of the node";
  const std::string error = ErrorText(follower.task());
  return absl::StrCat(StateText(follower.task()), error.empty() ? "" : ": ", error);
}

std::string PlaceText(const v1::ReplicationTask& task) {
  return absl::StrCat(task.node_name(), ":", LocationText(task.location()));
}

std::string StateText(const v1::ReplicationTask& task) {
  switch (task.state()) {
    case v1::REPLICATION_TASK_STATE_WAITING:
      return absl::StrCat("waits for ", task.waiting_for());
    case v1::REPLICATION_TASK_STATE_RUNNING:
      return task.bytes_total() == 0
                 ? "under way"
                 : absl::StrCat(FormatBytes(task.bytes()), " of ", FormatBytes(task.bytes_total()));
    case v1::REPLICATION_TASK_STATE_DONE:
      return "done";
    case v1::REPLICATION_TASK_STATE_FAILED:
      return "FAILED";
    default:
      return "unknown";
  }
}

std::string ErrorText(const v1::ReplicationTask& task) {
  return task.has_error() ? rpc::FromProto(task.error()).ToString() : "";
}

Command ReplicationCommand() {
  return {
      .name = "replication",
      .help = "Work with replication tasks, which `replicate` makes",
      .commands = {
          {.name = "ls",
           .help = "List replication tasks and their progress",
           .spanned = true,
           .bind = Bind(AddListFlags, ListTasks)},
          {.name = "cancel",
           .help =
               "Cancel the unfinished tasks of an artifact and its files, at all targets or at those of --to",
           .spanned = true,
           .bind = Bind(AddPlaceFlags, CancelTasks)}}};
}

Command FollowerCommand() {
  return {.name = "follower",
          .help = "Work with followers: places that `replicate --follow` keeps at a key's newest version",
          .commands = {{.name = "ls",
                        .help = "List the followers of keys, and each follower's revision",
                        .spanned = true,
                        .bind = Bind(AddFollowerListFlags, ListFollowers)},
                       {.name = "rm",
                        .help = "Remove followers of a key; their replicas stay",
                        .spanned = true,
                        .bind = Bind(AddFollowerPlaceFlags, RemoveFollowers)}}};
}

}  // namespace tensorcast::cli
