#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/admin.h"
#include "core/engine/replica.h"
#include "core/status/status.h"
#include "rpc/convert/convert.h"
#include "tools/cli/commands.h"
#include "tools/cli/json.h"
#include "tools/cli/output.h"

namespace tensorcast::cli {
namespace {

std::string LocationText(const v1::Location& location) {
  const absl::StatusOr<Location> parsed = rpc::FromProto(location);
  return parsed.ok() ? parsed->ToString() : "?";
}

std::string StateText(v1::ReplicaState state) {
  const absl::StatusOr<ReplicaState> parsed = rpc::FromProto(state);
  return parsed.ok() ? std::string(ReplicaStateName(*parsed)) : "?";
}

// "node@cpu, node@gpu:0"
std::string ReplicasText(const v1::Artifact& artifact) {
  std::vector<std::string> places;
  for (const v1::Replica& replica : artifact.replicas()) {
    places.push_back(absl::StrCat(LocationText(replica.location()), "@", replica.node_id().substr(0, 8)));
  }
  return absl::StrJoin(places, ", ");
}

absl::Status ListReplicas(const CommonFlags& common) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  TC_ASSIGN_OR_RETURN(const auto replicas, admin->ListReplicas(InterruptibleContext(), ""));
  if (common.json) {
    v1::ListReplicasResponse all;
    for (const v1::Replica& replica : replicas) *all.add_replicas() = replica;
    std::fputs(ToJson(all).c_str(), stdout);
    return absl::OkStatus();
  }
  Table table({"replica", "artifact", "location", "state", "bytes", "chunks", "leases", "pinned"});
  for (const v1::Replica& replica : replicas) {
    table.Add({replica.replica_id(), replica.artifact_id(), LocationText(replica.location()),
               StateText(replica.state()), absl::StrCat(replica.image_bytes()),
               absl::StrCat(replica.chunks_present(), "/", replica.chunks_total()),
               absl::StrCat(replica.leases()), replica.pinned() ? "yes" : "no"});
  }
  std::fputs(table.ToString().c_str(), stdout);
  return absl::OkStatus();
}

absl::Status ListArtifacts(const CommonFlags& common) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  TC_ASSIGN_OR_RETURN(
      const auto artifacts,
      admin->ListArtifacts(InterruptibleContext(), /*unkeyed_only=*/false, absl::ZeroDuration()));
  if (common.json) {
    v1::ListArtifactsResponse all;
    for (const v1::Artifact& artifact : artifacts) *all.add_artifacts() = artifact;
    std::fputs(ToJson(all).c_str(), stdout);
    return absl::OkStatus();
  }
  Table table({"artifact", "size", "tensors", "keys", "replicas"});
  for (const v1::Artifact& artifact : artifacts) {
    table.Add({artifact.artifact_id(), FormatBytes(artifact.image_bytes()),
               absl::StrCat(artifact.tensor_count()), absl::StrJoin(artifact.keys(), ", "),
               ReplicasText(artifact)});
  }
  std::fputs(table.ToString().c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

int RunList(const CommonFlags& common, const ListFlags& flags) {
  return ExitCode(flags.replicas ? ListReplicas(common) : ListArtifacts(common));
}

}  // namespace tensorcast::cli
