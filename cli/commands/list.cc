#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/commands/texts.h"
#include "cli/output/output.h"

namespace tensorcast::cli {
namespace {

struct ListFlags {
  bool nodes = false;
};

using NodeNames = std::map<std::string, std::string>;  // by node id

// None where the cluster does not tell: then ids have to do.
NodeNames NamesOfNodes(client::AdminClient& admin) {
  NodeNames names;
  const auto status = admin.GetClusterStatus(InterruptibleContext());
  if (!status.ok()) return names;
  for (const v1::Node& node : status->nodes()) names[node.node_id()] = node.name();
  return names;
}

std::string NodeText(const std::string& id, const NodeNames& names) {
  const auto known = names.find(id);
  return known != names.end() ? known->second : id.substr(0, 8);
}

// Of a partial replica, what there is of it: " (12 of 264 chunks)"; of one that is not a source, why.
std::string PartText(const v1::Replica& replica) {
  if (replica.chunks_unverified() > 0) return " (not verified)";
  if (replica.state() != v1::REPLICA_STATE_PARTIAL) return "";
  return absl::StrCat(" (", replica.chunks_present(), " of ", replica.chunks_total(), " chunks)");
}

// "3"; where they are listed "cpu@node-a, gpu:0@node-b, cpu@node-c (12 of 264 chunks)". Of an artifact
// without a replica, the files that a get would read: "origin@node-a".
std::string ReplicasText(const v1::Artifact& artifact, const NodeNames& names) {
  if (artifact.replicas().empty() && artifact.replica_count() > 0) {
    return absl::StrCat(artifact.replica_count());
  }
  std::vector<std::string> places;
  for (const v1::Replica& replica : artifact.replicas()) {
    places.push_back(absl::StrCat(LocationText(replica.location()), "@", NodeText(replica.node_id(), names),
                                  PartText(replica)));
  }
  if (!places.empty()) return absl::StrJoin(places, ", ");
  for (const v1::Origin& origin : artifact.origins()) {
    places.push_back(absl::StrCat("origin@", NodeText(origin.node_id(), names)));
  }
  return places.empty() ? "0" : absl::StrJoin(places, ", ");
}

// "llama/prod, llama/rl (kept)": keys that name it, then those that keep it as an earlier version.
std::string KeysText(const v1::Artifact& artifact) {
  std::vector<std::string> keys(artifact.keys().begin(), artifact.keys().end());
  for (const std::string& key : artifact.kept_by()) keys.push_back(absl::StrCat(key, " (kept)"));
  if (artifact.released()) keys.emplace_back("(goes when room is needed)");
  return absl::StrJoin(keys, ", ");
}

// Their names are all nodes' to ask for, so only where one is shown.
bool NamesNodes(const v1::Artifact& artifact) {
  return !artifact.replicas().empty() || (artifact.replica_count() == 0 && !artifact.origins().empty());
}

absl::Status ListArtifacts(const CommonFlags& common, const ListFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  TC_ASSIGN_OR_RETURN(const auto artifacts,
                      admin->ListArtifacts(InterruptibleContext(), /*unkeyed_only=*/false,
                                           absl::ZeroDuration(), flags.nodes));
  if (common.json) {
    v1::ListArtifactsResponse all;
    for (const v1::Artifact& artifact : artifacts) *all.add_artifacts() = artifact;
    std::fputs(ToJson(all).c_str(), stdout);
    return absl::OkStatus();
  }
  const NodeNames names = std::ranges::any_of(artifacts, NamesNodes) ? NamesOfNodes(*admin) : NodeNames();
  Table table({"artifact", "size", "tensors", "keys", "replicas"});
  for (const v1::Artifact& artifact : artifacts) {
    table.Add({artifact.artifact_id(), FormatBytes(artifact.image_bytes()),
               absl::StrCat(artifact.tensor_count()), KeysText(artifact), ReplicasText(artifact, names)});
  }
  std::fputs(table.ToString().c_str(), stdout);
  return absl::OkStatus();
}

void AddFlags(Flags& flags, ListFlags& values) {
  flags.Add("--nodes", values.nodes,
            "List the node and location of each replica instead of the number of replicas");
}

}  // namespace

Command ListCommand() {
  return {.name = "ls",
          .help = "List artifacts, their keys and replicas",
          .spanned = true,
          .bind = Bind(AddFlags, ListArtifacts)};
}

}  // namespace tensorcast::cli
