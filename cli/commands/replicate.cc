#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/labels.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "base/text.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/output/json.h"
#include "cli/output/output.h"
#include "core/artifact/manifest.h"
#include "core/replica/replica.h"
#include "rpc/convert/convert.h"
#include "rpc/retry.h"
#include "rpc/retry_after.h"
#include "tensorcast/client.h"

namespace tensorcast::cli {
namespace {

using Target = v1::ReplicateArtifactRequest::Target;
using Targets = google::protobuf::RepeatedPtrField<Target>;
using Result = v1::ReplicateArtifactResponse::Result;

constexpr absl::Duration kDrawInterval = absl::Milliseconds(100);
constexpr absl::Duration kSayAfter = absl::Seconds(5);
constexpr std::string_view kAllGpus = "gpu:all";

struct ReplicateFlags {
  std::string artifact;            // a key or an id
  std::vector<std::string> to;     // NODE or NODE:LOCATION
  std::string device = "cpu";      // of those that name no location
  bool all = false;                // nodes that are registered now
  std::vector<std::string> where;  // of those, with these labels
  std::string lane = "auto";
  bool no_wait = false;
  bool cancel = false;
};

std::string LocationText(const v1::Location& location) {
  const absl::StatusOr<Location> known = rpc::FromProto(location);
  return known.ok() ? known->ToString() : "?";
}

std::string PlaceText(const v1::ReplicationTask& task) {
  return absl::StrCat(task.node_name(), ":", LocationText(task.location()));
}

absl::Status AddTarget(const std::string& node, const std::string& location, Targets* targets) {
  TC_ASSIGN_OR_RETURN(const Location parsed, Location::Parse(location));
  Target* target = targets->Add();
  target->set_node_id(node);
  *target->mutable_location() = rpc::ToProto(parsed);
  return absl::OkStatus();
}

// With gpu:all one a GPU of the node.
absl::Status AddPlaces(const v1::GetClusterStatusResponse& cluster, const std::string& node,
                       const std::string& location, Targets* targets) {
  if (location != kAllGpus) return AddTarget(node, location, targets);
  for (const v1::Node& one : cluster.nodes()) {
    if (one.node_id() != node && one.name() != node) continue;
    for (const v1::Device& device : one.devices()) {
      TC_RETURN_IF_ERROR(AddTarget(node, absl::StrCat("gpu:", device.ordinal()), targets));
    }
    if (!one.devices().empty()) return absl::OkStatus();
    return absl::NotFoundError(absl::StrCat("node ", node, " has no GPU"));
  }
  return absl::NotFoundError(
      absl::StrCat("no node that is registered now is called ", node, ", nor has that id"));
}

absl::Status AddNamed(const v1::GetClusterStatusResponse& cluster, const ReplicateFlags& flags,
                      Targets* targets) {
  for (const std::string& list : flags.to) {
    for (const std::string_view place : absl::StrSplit(list, ',')) {
      const size_t colon = place.find(':');
      const std::string node(place.substr(0, colon));
      if (node.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("--to ", list, ": NODE or NODE:LOCATION is expected, as in node-1 or node-1:gpu:0"));
      }
      const std::string location =
          colon == std::string_view::npos ? flags.device : std::string(place.substr(colon + 1));
      TC_RETURN_IF_ERROR(Annotate(AddPlaces(cluster, node, location, targets), absl::StrCat("--to ", list)));
    }
  }
  return absl::OkStatus();
}

// Of the nodes that are registered now. Those that drain are on their way out.
absl::Status AddRegistered(const v1::GetClusterStatusResponse& cluster, const ReplicateFlags& flags,
                           Targets* targets) {
  const absl::StatusOr<Labels> wanted = ParseLabels(flags.where);
  TC_RETURN_IF_ERROR(Annotate(wanted.status(), "--where"));
  bool fitting = false;
  for (const v1::Node& node : cluster.nodes()) {
    if (node.draining() || !HasLabels({node.labels().begin(), node.labels().end()}, *wanted)) continue;
    fitting = true;
    if (flags.device == kAllGpus && node.devices().empty()) continue;  // it has none to name
    TC_RETURN_IF_ERROR(Annotate(AddPlaces(cluster, node.node_id(), flags.device, targets), "--device"));
  }
  if (!targets->empty()) return absl::OkStatus();
  if (fitting) return absl::NotFoundError("--device gpu:all: none of these nodes has a GPU");
  return absl::NotFoundError(
      absl::StrCat("none of the ", cluster.nodes_size(), " nodes that are registered now ",
                   wanted->empty() ? "takes copies" : absl::StrCat("has the labels ", LabelsText(*wanted))));
}

absl::Status AddTargets(client::AdminClient& admin, const RequestContext& context,
                        const ReplicateFlags& flags, Targets* targets) {
  TC_ASSIGN_OR_RETURN(const v1::GetClusterStatusResponse cluster, admin.GetClusterStatus(context));
  return flags.all ? AddRegistered(cluster, flags, targets) : AddNamed(cluster, flags, targets);
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

void PrintTasks(const std::vector<v1::ReplicationTask>& tasks) {
  Table table({"place", "state", "last error"});
  for (const v1::ReplicationTask& task : tasks) {
    table.Add({PlaceText(task), StateText(task), ErrorText(task)});
  }
  std::fputs(table.ToString().c_str(), stdout);
}

std::string WaitText(const v1::ReplicationTask& task) {
  return absl::StrCat(PlaceText(task), " waits for ", task.waiting_for(),
                      task.has_error() ? ": " + ErrorText(task) : "");
}

bool IsOpen(const v1::ReplicationTask& task) {
  return task.state() == v1::REPLICATION_TASK_STATE_WAITING ||
         task.state() == v1::REPLICATION_TASK_STATE_RUNNING;
}

std::string PlaceKey(const v1::ReplicationTask& task) {
  return absl::StrCat(task.node_id(), ":", LocationText(task.location()));
}

// What was asked for, and how each place stands.
class Replication {
 public:
  explicit Replication(v1::ReplicateArtifactResponse response) : response_(std::move(response)) {
    for (Result& result : *response_.mutable_results()) {
      if (result.has_task() && IsOpen(result.task())) open_.emplace(PlaceKey(result.task()), &result);
    }
  }
  Replication(const Replication&) = delete;
  Replication& operator=(const Replication&) = delete;

  const v1::ReplicateArtifactResponse& response() const { return response_; }

  // What a watch says. Each begins with all tasks as they are; what is not among them was taken back while
  // no watch was open.
  void BeginWatch() { named_.clear(); }
  void Note(const v1::WatchReplicationTasksResponse& news) {
    if (news.listed()) {
      std::set<std::string> gone;
      for (const auto& [place, result] : open_) {
        if (!named_.contains(place)) gone.insert(place);
      }
      for (const std::string& place : gone) NoteGone(place);
      return;
    }
    const std::string place = PlaceKey(news.task());
    if (news.gone()) return NoteGone(place);
    named_.insert(place);
    const auto [first, last] = open_.equal_range(place);
    for (auto at = first; at != last; ++at) *at->second->mutable_task() = news.task();
    if (!IsOpen(news.task())) open_.erase(first, last);
  }

  bool ended() const { return open_.empty(); }

  TransferProgress progress() const {
    uint64_t image_bytes = 0;
    for (const Result& result : response_.results()) {
      image_bytes = std::max(image_bytes, result.task().bytes_total());
    }
    TransferProgress all;
    for (const Result& result : response_.results()) {
      if (result.has_error()) continue;
      all.bytes_total += image_bytes;
      all.bytes_done += IsThere(result) ? image_bytes : result.task().bytes();
      if (all.waiting_for.empty()) all.waiting_for = result.task().waiting_for();
    }
    return all;
  }

  void Print() const {
    Table table({"place", "state"});
    for (const Result& result : response_.results()) {
      const std::string place = result.has_task()
                                    ? PlaceText(result.task())
                                    : absl::StrCat(result.node_id(), ":", LocationText(result.location()));
      table.Add({place, result.has_task()    ? StateText(result.task())
                        : result.has_error() ? "FAILED"
                                             : "was there already"});
    }
    std::fputs(table.ToString().c_str(), stdout);
  }

  // Why it is not everywhere, each place with its reason. With `waited`, one that is not there yet is one,
  // too.
  absl::Status Verdict(bool waited) const {
    std::vector<std::string> missing;
    absl::StatusCode code = absl::StatusCode::kUnknown;
    for (const Result& result : response_.results()) {
      if (IsThere(result) || (!waited && result.has_task() && IsOpen(result.task()))) continue;
      const absl::Status why = rpc::FromProto(result.has_error() ? result.error() : result.task().error());
      const std::string node = result.has_task() ? result.task().node_name() : result.node_id();
      missing.push_back(absl::StrCat(node, ":", LocationText(result.location()), ": ", why.ToString()));
      code = why.code();
    }
    if (missing.empty()) return absl::OkStatus();
    return absl::Status(
        code == absl::StatusCode::kOk ? absl::StatusCode::kUnknown : code,
        absl::StrCat("it is missing at ", missing.size(), " of ", response_.results_size(),
                     " places; do the same again to try those again\n  ", absl::StrJoin(missing, "\n  ")));
  }

 private:
  static bool IsThere(const Result& result) {
    return !result.has_error() &&
           (!result.has_task() || result.task().state() == v1::REPLICATION_TASK_STATE_DONE);
  }

  void NoteGone(const std::string& place) {
    const auto [first, last] = open_.equal_range(place);
    for (auto at = first; at != last; ++at) {
      at->second->mutable_task()->set_state(v1::REPLICATION_TASK_STATE_FAILED);
      *at->second->mutable_task()->mutable_error() =
          rpc::ToProto(absl::CancelledError("it was taken back, or the artifact was deleted"));
    }
    open_.erase(first, last);
  }

  v1::ReplicateArtifactResponse response_;
  std::multimap<std::string, Result*> open_;  // by place; what is named twice is there twice
  std::set<std::string> named_;               // places, by this watch
};

absl::Status AwaitAll(client::AdminClient& admin, const RequestContext& context,
                      const std::string& artifact_id, Replication& replication) {
  const SteadyTime say_waits = SteadyNow() + kSayAfter;
  ProgressBar bar("replicate");
  SteadyTime drawn = SteadyTime::InfinitePast();
  rpc::Backoff backoff;
  std::set<std::string> said;
  const auto say = [&said](const std::string& line) {
    // Over the bar, which is drawn again with the next news.
    const char* const clear = isatty(STDERR_FILENO) != 0 ? "\r\033[K" : "";
    if (said.insert(line).second) std::fprintf(stderr, "%s%s\n", clear, Printable(line).c_str());
  };
  const auto show = [&](const v1::WatchReplicationTasksResponse& news) {
    backoff.Reset();
    replication.Note(news);
    const SteadyTime now = SteadyNow();
    if (now - drawn >= kDrawInterval || replication.ended()) {
      drawn = now;
      bar.callback()(replication.progress());
    }
    // What waits for a moment only is not worth a line.
    if (now >= say_waits && news.task().state() == v1::REPLICATION_TASK_STATE_WAITING) {
      say(WaitText(news.task()));
    }
    return !replication.ended();
  };
  while (!replication.ended()) {
    // The first watch ends when there is something to say of what still waits, news or not.
    RequestContext watch = context;
    if (SteadyNow() < say_waits) watch.deadline = std::min(context.deadline, say_waits);
    replication.BeginWatch();
    const absl::Status watched = admin.WatchReplicationTasks(watch, artifact_id, show);
    TC_RETURN_IF_ERROR(context.Check("replication"));
    if (replication.ended() || absl::IsDeadlineExceeded(watched)) continue;
    // A server that shuts down ends or cancels its streams.
    if (!watched.ok() && !absl::IsUnavailable(watched) && !absl::IsCancelled(watched)) return watched;
    say(absl::StrCat("cannot watch the progress: ", watched.message()));
    TC_RETURN_IF_ERROR(rpc::SleepFor(context, rpc::WaitAfter(watched, backoff), "replication"));
  }
  return absl::OkStatus();
}

absl::Status Replicate(const CommonFlags& common, const ReplicateFlags& flags, client::AdminClient& admin,
                       const RequestContext& context, const std::string& artifact_id) {
  v1::ReplicateArtifactRequest request;
  request.set_artifact_id(artifact_id);
  request.set_lane(flags.lane);
  TC_RETURN_IF_ERROR(AddTargets(admin, context, flags, request.mutable_targets()));
  TC_ASSIGN_OR_RETURN(v1::ReplicateArtifactResponse response, admin.Replicate(context, request));
  Replication replication(std::move(response));
  if (!flags.no_wait) {
    const absl::Status waited = AwaitAll(admin, context, artifact_id, replication);
    if (!waited.ok()) {
      std::fprintf(
          stderr,
          "it goes on without this command: `tensorcast replicate %s` shows how far it is, with --cancel it "
          "ends\n",
          flags.artifact.c_str());
      return waited;
    }
  }
  common.json ? (void)std::fputs(ToJson(replication.response()).c_str(), stdout) : replication.Print();
  return replication.Verdict(!flags.no_wait);
}

absl::Status Cancel(const CommonFlags& common, const ReplicateFlags& flags, client::AdminClient& admin,
                    const RequestContext& context, const std::string& artifact_id) {
  v1::CancelReplicationTasksRequest request;
  request.set_artifact_id(artifact_id);
  TC_RETURN_IF_ERROR(AddTargets(admin, context, flags, request.mutable_targets()));
  TC_ASSIGN_OR_RETURN(const v1::CancelReplicationTasksResponse cancelled,
                      admin.CancelReplicationTasks(context, request));
  if (common.json) {
    std::fputs(ToJson(cancelled).c_str(), stdout);
    return absl::OkStatus();
  }
  for (const v1::ReplicationTask& task : cancelled.tasks()) {
    std::printf("cancelled %s\n", PlaceText(task).c_str());
  }
  if (cancelled.tasks().empty()) std::printf("nothing was under way there\n");
  return absl::OkStatus();
}

absl::Status Show(const CommonFlags& common, client::AdminClient& admin, const RequestContext& context,
                  const std::string& artifact_id) {
  TC_ASSIGN_OR_RETURN(std::vector<v1::ReplicationTask> tasks,
                      admin.ListReplicationTasks(context, artifact_id));
  if (!common.json) {
    PrintTasks(tasks);
    return absl::OkStatus();
  }
  v1::ListReplicationTasksResponse response;
  for (v1::ReplicationTask& task : tasks) *response.add_tasks() = std::move(task);
  std::fputs(ToJson(response).c_str(), stdout);
  return absl::OkStatus();
}

absl::Status Run(const CommonFlags& common, const ReplicateFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  const RequestContext context = InterruptibleContext();
  std::string artifact_id = flags.artifact;
  if (!IsArtifactId(artifact_id)) {
    TC_ASSIGN_OR_RETURN(const auto client, ConnectClient(common));
    TC_ASSIGN_OR_RETURN(const client::KeyInfo key,
                        client->ResolveKey(context, flags.artifact, /*confirmed=*/true));
    artifact_id = key.artifact_id;
  }
  if (flags.cancel) return Cancel(common, flags, *admin, context, artifact_id);
  if (flags.to.empty() && !flags.all) return Show(common, *admin, context, artifact_id);
  return Replicate(common, flags, *admin, context, artifact_id);
}

void AddFlags(Flags& flags, ReplicateFlags& values) {
  flags.Add("artifact", values.artifact, "A key, or an artifact id (tc2:...)", {.required = true});
  flags.Add("--to", values.to,
            "Targets as NODE or NODE:LOCATION, separated by commas; NODE is a name or an id",
            {.not_empty = true});
  flags.Add("--all", values.all, "Replicate to every node that is registered now");
  flags.Add("--where", values.where,
            "With --all: only nodes with the label NAME=VALUE; may be given several times");
  flags.Add("--device", values.device, "Location for targets without one: gpu:N, gpu:all, cpu or disk",
            {.show_default = true});
  flags.Add(
      "--lane", values.lane,
      "nccl: one broadcast to the GPUs of several nodes, or an error with the reason; pull: each node by "
      "itself; auto: the one that is expected to be faster",
      {.show_default = true});
  flags.Add("--no-wait", values.no_wait, "Submit the tasks and return without waiting");
  flags.Add("--cancel", values.cancel,
            "Cancel unfinished tasks: those of the given targets, or all of the artifact");
}

int RunReplicate(const CommonFlags& common, const ReplicateFlags& flags) {
  if (flags.all && !flags.to.empty()) {
    return Fail(absl::InvalidArgumentError("replicate needs either --to or --all"));
  }
  if (!flags.all && !flags.where.empty()) {
    return Fail(absl::InvalidArgumentError("--where chooses among all nodes: add --all"));
  }
  return ExitCode(Run(common, flags));
}

}  // namespace

Command ReplicateCommand() {
  return {.name = "replicate",
          .help = "Bring an artifact to other nodes, or show how far that is",
          .spanned = true,
          .bind = Bind(AddFlags, RunReplicate)};
}

}  // namespace tensorcast::cli
