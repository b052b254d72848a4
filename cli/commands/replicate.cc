#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/labels.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "base/text.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/commands/replication.h"
#include "cli/commands/texts.h"
#include "cli/output/output.h"
#include "core/artifact/manifest.h"
#include "rpc/convert/convert.h"
#include "rpc/retry.h"
#include "rpc/retry_after.h"

namespace tensorcast::cli {
namespace {

using Result = v1::ReplicateArtifactResponse::Result;

constexpr absl::Duration kDrawInterval = absl::Milliseconds(100);
constexpr absl::Duration kSayAfter = absl::Seconds(5);

struct ReplicateFlags {
  PlaceFlags places;
  bool all = false;                // nodes that are registered now
  std::vector<std::string> where;  // of those, with these labels
  std::string lane = "auto";
  bool no_wait = false;
  bool follow = false;
};

// Of the nodes that are registered now. Those that drain are on their way out.
absl::Status AddRegistered(const v1::GetClusterStatusResponse& cluster, const ReplicateFlags& flags,
                           ReplicationTargets* targets) {
  const std::string& device = flags.places.device;
  const absl::StatusOr<Labels> wanted = ParseLabels(flags.where);
  TC_RETURN_IF_ERROR(Annotate(wanted.status(), "--where"));
  bool fitting = false;
  for (const v1::Node& node : cluster.nodes()) {
    if (node.draining() || !HasLabels({node.labels().begin(), node.labels().end()}, *wanted)) continue;
    fitting = true;
    if (device == kAllGpus && node.devices().empty()) continue;  // it has none to name
    TC_RETURN_IF_ERROR(Annotate(AddPlaces(cluster, node.node_id(), device, targets), "--device"));
  }
  if (!targets->empty()) return absl::OkStatus();
  if (cluster.nodes().empty()) {
    return absl::NotFoundError("no node is registered at the global store now; start a daemon");
  }
  if (fitting) {
    return absl::NotFoundError(
        "--device gpu:all: no chosen node has a GPU; choose other nodes, or another --device");
  }
  if (wanted->empty()) {
    return absl::NotFoundError(absl::StrCat("no registered node takes new replicas: all ",
                                            cluster.nodes_size(), " nodes are draining; undrain a node"));
  }
  return absl::NotFoundError(
      absl::StrCat("no registered node with the labels ", LabelsText(*wanted),
                   " takes new replicas: no node has these labels, or each such node is draining; choose "
                   "other labels, or undrain a node"));
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
    // `open_` points into the response, which does not change its size from here on.
    for (Result& result : *response_.mutable_results()) {
      if (result.has_task() && IsOpen(result.task())) open_.emplace(PlaceKey(result.task()), &result);
    }
  }
  Replication(const Replication&) = delete;
  Replication& operator=(const Replication&) = delete;

  const v1::ReplicateArtifactResponse& response() const { return response_; }

  // Takes the news of a watch. Each watch begins with all tasks as they are; a task that is not among them
  // was cancelled while no watch was open.
  void BeginWatch() { named_.clear(); }
  // The stream of a watch: each task as it is, then one message with `listed`, then each change. After
  // `listed` a task that was not named cannot exist any more.
  void Note(const v1::WatchReplicationTasksResponse& news) {
    if (news.listed()) return NoteGone([this](const std::string& one) { return !named_.contains(one); });
    const std::string place = PlaceKey(news.task());
    if (news.gone()) return NoteGone([&place](const std::string& one) { return one == place; });
    named_.insert(place);
    const auto [first, last] = open_.equal_range(place);
    for (auto at = first; at != last; ++at) *at->second->mutable_task() = news.task();
    if (!IsOpen(news.task())) open_.erase(first, last);
  }

  bool ended() const { return open_.empty(); }

  TransferProgress progress() const {
    // All places get the same image, but a task knows its size only once it runs. So the largest known size
    // stands for all, and the bar does not jump back when another task begins.
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

  std::string Text() const {
    Table table({"place", "state"});
    for (const Result& result : response_.results()) {
      const std::string place = result.has_task()
                                    ? PlaceText(result.task())
                                    : absl::StrCat(result.node_id(), ":", LocationText(result.location()));
      table.Add({place, result.has_task()    ? StateText(result.task())
                        : result.has_error() ? "FAILED"
                                             : "was there already"});
    }
    return table.ToString();
  }

  // Why it is not everywhere, each place with its reason. With `waited`, one that is not there yet is one,
  // too.
  absl::Status Verdict(bool waited) const {
    std::vector<std::string> missing;
    // The code of the last place stands for all; the text names each one.
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
        absl::StrCat("the artifact is missing at ", missing.size(), " of ", response_.results_size(),
                     " places; correct the causes below, and run the command again\n  ",
                     absl::StrJoin(missing, "\n  ")));
  }

 private:
  static bool IsThere(const Result& result) {
    return !result.has_error() &&
           (!result.has_task() || result.task().state() == v1::REPLICATION_TASK_STATE_DONE);
  }

  void NoteGone(absl::FunctionRef<bool(const std::string& place)> is_gone) {
    // The store does not keep a cancelled task, so its end is written down here, as the result that the user
    // sees.
    std::erase_if(open_, [&is_gone](const auto& open) {
      if (!is_gone(open.first)) return false;
      v1::ReplicationTask& task = *open.second->mutable_task();
      task.set_state(v1::REPLICATION_TASK_STATE_FAILED);
      *task.mutable_error() = rpc::ToProto(absl::CancelledError(
          "another client cancelled the task or deleted its artifact, or the task ended long ago"));
      return true;
    });
  }

  v1::ReplicateArtifactResponse response_;
  std::multimap<std::string, Result*> open_;  // by place; what is named twice is there twice
  std::set<std::string> named_;               // places, by this watch
};

// Watches until no task is open. A watch that ends is begun again, since the global store may restart while
// tasks run; only an error that another try cannot mend ends the command. The tasks go on either way.
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
  // Called on this thread, for each message of the watch. False ends the watch.
  const auto show = [&](const v1::WatchReplicationTasksResponse& news) {
    // Whatever the news is, the global store is there.
    backoff.Reset();
    replication.Note(news);
    const SteadyTime now = SteadyNow();
    if (now - drawn >= kDrawInterval || replication.ended()) {
      drawn = now;
      bar.callback()(replication.progress());
    }
    // A task that waits for a moment only is not worth a line.
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
    // The user or the deadline ended the watch. Asked before its status, which says only how the stream
    // ended.
    TC_RETURN_IF_ERROR(context.Check(absl::StrCat("replicate ", artifact_id)));
    if (replication.ended() || absl::IsDeadlineExceeded(watched)) continue;
    // A server that shuts down ends or cancels its streams.
    if (!watched.ok() && !absl::IsUnavailable(watched) && !absl::IsCancelled(watched)) return watched;
    say(absl::StrCat("watch the progress: ", watched.message(), "; this command tries again"));
    TC_RETURN_IF_ERROR(
        rpc::SleepFor(context, rpc::WaitAfter(watched, backoff), absl::StrCat("replicate ", artifact_id)));
  }
  return absl::OkStatus();
}

// Returns once the followers are durable: each version takes its time, and none is the last.
absl::Status Follow(const CommonFlags& common, const RequestContext& context, const std::string& key,
                    const ReplicationTargets& named) {
  TC_ASSIGN_OR_RETURN(const client::VersionsClient::Targets targets, FollowTargets(named));
  TC_ASSIGN_OR_RETURN(const auto versions, ConnectVersions(common));
  TC_ASSIGN_OR_RETURN(const v1::FollowKeyResponse response, versions->FollowKey(context, key, targets));
  std::vector<std::string> refused;
  absl::StatusCode code = absl::StatusCode::kUnknown;
  Table table({"place", "state"});
  for (const v1::FollowKeyResponse::Result& result : response.results()) {
    if (result.has_follower()) {
      table.Add({PlaceText(result.follower()), StateText(result.follower())});
      continue;
    }
    const absl::Status why = rpc::FromProto(result.error());
    const std::string place = absl::StrCat(result.node_id(), ":", LocationText(result.location()));
    table.Add({place, "FAILED"});
    refused.push_back(absl::StrCat(place, ": ", why.ToString()));
    code = why.code();
  }
  TC_RETURN_IF_ERROR(Show(common, response, [&] { return table.ToString(); }));
  if (refused.empty()) return absl::OkStatus();
  return absl::Status(code,
                      absl::StrCat("replicate ", key, ": ", refused.size(), " of ", response.results_size(),
                                   " places cannot follow the key; correct the causes and run the command "
                                   "again\n  ",
                                   absl::StrJoin(refused, "\n  ")));
}

absl::Status Replicate(const CommonFlags& common, const ReplicateFlags& flags) {
  if (!flags.all && !flags.where.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("replicate ", flags.places.artifact, ": --where chooses among all nodes; add --all"));
  }
  if (flags.all && !flags.places.to.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("replicate ", flags.places.artifact,
                                                   ": both --to and --all are given; give only one of them"));
  }
  if (!flags.all && flags.places.to.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "replicate ", flags.places.artifact, ": no targets are given; give --to or --all (to list the tasks ",
        "that exist, run `tensorcast replication ls ", flags.places.artifact, "`)"));
  }
  if (flags.follow && (IsArtifactId(flags.places.artifact) || flags.lane != "auto")) {
    return absl::InvalidArgumentError(
        absl::StrCat("replicate ", flags.places.artifact, " --follow: ",
                     flags.lane != "auto" ? "--lane cannot be given together with --follow; leave --lane out"
                                          : "an artifact id has no later versions; give a key"));
  }
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  const RequestContext context = InterruptibleContext();
  v1::ReplicateArtifactRequest request;
  if (!flags.follow) {
    TC_ASSIGN_OR_RETURN(*request.mutable_artifact_id(),
                        ConfirmedArtifactId(*admin, context, flags.places.artifact));
  }
  request.set_lane(flags.lane);
  TC_ASSIGN_OR_RETURN(const v1::GetClusterStatusResponse cluster, admin->GetClusterStatus(context));
  const std::string what = absl::StrCat("replicate ", flags.places.artifact);
  TC_RETURN_IF_ERROR(Annotate(flags.all ? AddRegistered(cluster, flags, request.mutable_targets())
                                        : AddNamed(cluster, flags.places, request.mutable_targets()),
                              what));
  if (flags.follow) return Follow(common, context, flags.places.artifact, request.targets());
  TC_ASSIGN_OR_RETURN(v1::ReplicateArtifactResponse response, admin->Replicate(context, request));
  Replication replication(std::move(response));
  if (!flags.no_wait) {
    const absl::Status waited = AwaitAll(*admin, context, request.artifact_id(), replication);
    if (!waited.ok()) {
      const std::string artifact = Printable(flags.places.artifact);
      std::fprintf(stderr,
                   "the tasks continue without this command: `tensorcast replication ls %s` shows their "
                   "progress, `tensorcast replication cancel %s` cancels them\n",
                   artifact.c_str(), artifact.c_str());
      return waited;
    }
  }
  TC_RETURN_IF_ERROR(Show(common, replication.response(), [&] { return replication.Text(); }));
  return Annotate(replication.Verdict(!flags.no_wait), what);
}

void AddFlags(Flags& flags, ReplicateFlags& values) {
  AddPlaceFlags(flags, values.places);
  flags.Add("--all", values.all, "Replicate to every node that is registered now");
  flags.Add("--where", values.where,
            "With --all: replicate only to nodes with this label, NAME=VALUE; if given several times, only "
            "to nodes with all these labels");
  flags.Add(
      "--lane", values.lane,
      "nccl: one broadcast to the GPUs of several nodes, which fails if it is not possible; pull: each node "
      "pulls separately; auto: nccl or pull, whichever TensorCast expects to be faster",
      {.show_default = true});
  flags.Add(
      "--follow", values.follow,
      "Keep the targets at the newest version of the key from now on; `follower ls` lists these followers, "
      "`follower rm` removes them");
  flags.Add("--no-wait", values.no_wait, "Submit the tasks and return without waiting");
}

}  // namespace

Command ReplicateCommand() {
  return {.name = "replicate",
          .help = "Bring an artifact to other nodes",
          .spanned = true,
          .bind = Bind(AddFlags, Replicate)};
}

}  // namespace tensorcast::cli
