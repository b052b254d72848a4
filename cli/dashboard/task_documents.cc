#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/dashboard/document_maker.h"
#include "cli/dashboard/paging.h"

namespace tensorcast::dashboard {

using nlohmann::json;

absl::StatusOr<json> Documents::Maker::Tasks(const Query& query) {
  TC_ASSIGN_OR_RETURN(const auto all, AllTasks());
  static const std::map<std::string, v1::ReplicationTaskState> kStates = {
      {"waiting", v1::REPLICATION_TASK_STATE_WAITING},
      {"running", v1::REPLICATION_TASK_STATE_RUNNING},
      {"done", v1::REPLICATION_TASK_STATE_DONE},
      {"failed", v1::REPLICATION_TASK_STATE_FAILED}};
  const std::string state = ParameterOf(query, "state");
  const std::string artifact = ParameterOf(query, "artifact");
  if (!state.empty() && !kStates.contains(state)) {
    return absl::InvalidArgumentError(
        absl::StrCat("list tasks: state is ", state, "; give waiting, running, done or failed"));
  }
  // All states are counted, also those that the filter leaves out: they are the page's tabs.
  json document = {{"states", json::object()}};
  for (const auto& [name, value] : kStates) document["states"][name] = 0;
  std::vector<const v1::ReplicationTask*> tasks;
  for (const v1::ReplicationTask& task : all->tasks()) {
    if (!artifact.empty() && task.artifact_id() != artifact) continue;
    for (const auto& [name, value] : kStates) {
      if (value == task.state()) document["states"][name] = document["states"][name].get<int>() + 1;
    }
    if (state.empty() || kStates.at(state) == task.state()) tasks.push_back(&task);
  }
  std::ranges::sort(tasks, {}, &v1::ReplicationTask::task_id);
  TC_RETURN_IF_ERROR(AddPage(
      query, "tasks", tasks.size(), [&](size_t i) { return tasks[i]->task_id(); },
      [&](size_t i) { return ToDocument(*tasks[i]); }, &document));
  return document;
}

}  // namespace tensorcast::dashboard
