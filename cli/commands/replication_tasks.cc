#include "cli/commands/replication_tasks.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
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

}  // namespace

void AddPlaceFlags(Flags& flags, PlaceFlags& values) {
  flags.Add("artifact", values.artifact, "A key, or an artifact id (tc2:...)", {.required = true});
  flags.Add("--to", values.to,
            "Targets as NODE or NODE:LOCATION, separated by commas; NODE is a name or an id",
            {.not_empty = true});
  flags.Add("--device", values.device, "Location for targets without one: gpu:N, gpu:all, cpu or disk",
            {.show_default = true});
}

absl::Status AddPlaces(const v1::GetClusterStatusResponse& cluster, const std::string& node,
                       const std::string& location, ReplicationTargets* targets) {
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

absl::Status AddNamed(const v1::GetClusterStatusResponse& cluster, const PlaceFlags& flags,
                      ReplicationTargets* targets) {
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

absl::StatusOr<std::string> ConfirmedArtifactId(client::AdminClient& admin, const RequestContext& context,
                                                const std::string& artifact) {
  if (IsArtifactId(artifact)) return artifact;
  TC_ASSIGN_OR_RETURN(const v1::ResolveKeyResponse resolved,
                      admin.ResolveKey(context, artifact, /*confirmed=*/true));
  return resolved.key().artifact_id();
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

}  // namespace tensorcast::cli
