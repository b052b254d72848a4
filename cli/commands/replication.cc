// `tensorcast replication`: the tasks that `tensorcast replicate` made.
#include <cstdio>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/commands/replication_tasks.h"
#include "cli/output/output.h"

namespace tensorcast::cli {
namespace {

struct ListFlags {
  std::string artifact;  // a key or an id; empty: all
};

void PrintTasks(const std::vector<v1::ReplicationTask>& tasks, bool of_one) {
  Table table(of_one ? std::vector<std::string>{"place", "state", "last error"}
                     : std::vector<std::string>{"artifact", "place", "state", "last error"});
  for (const v1::ReplicationTask& task : tasks) {
    std::vector<std::string> row = {PlaceText(task), StateText(task), ErrorText(task)};
    if (!of_one) row.insert(row.begin(), task.artifact_id());
    table.Add(std::move(row));
  }
  std::fputs(table.ToString().c_str(), stdout);
}

absl::Status ListTasks(const CommonFlags& common, const ListFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  const RequestContext context = InterruptibleContext();
  std::string artifact_id;
  if (!flags.artifact.empty()) {
    TC_ASSIGN_OR_RETURN(artifact_id, ConfirmedArtifactId(*admin, context, flags.artifact));
  }
  TC_ASSIGN_OR_RETURN(const v1::ListReplicationTasksResponse response,
                      admin->ListReplicationTasks(context, artifact_id));
  if (!common.json) {
    PrintTasks({response.tasks().begin(), response.tasks().end()}, /*of_one=*/!artifact_id.empty());
    return absl::OkStatus();
  }
  std::fputs(ToJson(response).c_str(), stdout);
  return absl::OkStatus();
}

absl::Status CancelTasks(const CommonFlags& common, const PlaceFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  const RequestContext context = InterruptibleContext();
  v1::CancelReplicationTasksRequest request;
  TC_ASSIGN_OR_RETURN(*request.mutable_artifact_id(), ConfirmedArtifactId(*admin, context, flags.artifact));
  if (!flags.to.empty()) {
    TC_ASSIGN_OR_RETURN(const v1::GetClusterStatusResponse cluster, admin->GetClusterStatus(context));
    TC_RETURN_IF_ERROR(AddNamed(cluster, flags, request.mutable_targets()));
  }
  TC_ASSIGN_OR_RETURN(const v1::CancelReplicationTasksResponse cancelled,
                      admin->CancelReplicationTasks(context, request));
  if (common.json) {
    std::fputs(ToJson(cancelled).c_str(), stdout);
    return absl::OkStatus();
  }
  for (const v1::ReplicationTask& task : cancelled.tasks()) PrintF("cancelled %s\n", PlaceText(task));
  if (cancelled.tasks().empty()) std::printf("nothing was under way there\n");
  return absl::OkStatus();
}

void AddListFlags(Flags& flags, ListFlags& values) {
  flags.Add("artifact", values.artifact, "A key or an artifact id, to list only the tasks of this artifact");
}

}  // namespace

Command ReplicationCommand() {
  return {.name = "replication",
          .help = "Work with replication tasks, which `replicate` makes",
          .commands = {{.name = "ls",
                        .help = "List replication tasks and how far they are",
                        .spanned = true,
                        .bind = Bind(AddListFlags, ListTasks)},
                       {.name = "cancel",
                        .help = "Cancel unfinished tasks of an artifact: all, or those of the given targets",
                        .spanned = true,
                        .bind = Bind(AddPlaceFlags, CancelTasks)}}};
}

}  // namespace tensorcast::cli
