#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/dashboard/document_maker.h"
#include "cli/dashboard/paging.h"
#include "core/artifact/manifest.h"

namespace tensorcast::dashboard {

using nlohmann::json;

absl::StatusOr<json> Documents::Maker::Artifacts(const Query& query) {
  TC_ASSIGN_OR_RETURN(const auto all, AllArtifacts());
  // The search runs here, in the list that all tabs share, so it costs the store nothing.
  const std::string text = ParameterOf(query, "q");
  const auto has = [&](const std::string& part) { return absl::StrContains(part, text); };
  std::vector<const v1::Artifact*> artifacts;
  // Each version may have one: they would hide the versions.
  const bool differences = ParameterOf(query, "kind") == ArtifactKindName(ArtifactKind::kDifference);
  for (const v1::Artifact& artifact : *all) {
    if ((artifact.kind() == static_cast<uint32_t>(ArtifactKind::kDifference)) != differences) continue;
    const bool origin = std::ranges::any_of(artifact.origins(), [&](const v1::Origin& one) {
      return std::ranges::any_of(one.objects(), has, &v1::Origin::Object::uri);
    });
    if (has(artifact.artifact_id()) || origin || std::ranges::any_of(artifact.keys(), has) ||
        std::ranges::any_of(artifact.kept_by(), has)) {
      artifacts.push_back(&artifact);
    }
  }
  std::ranges::sort(artifacts, {}, &v1::Artifact::artifact_id);
  json document = json::object();
  TC_RETURN_IF_ERROR(AddPage(
      query, "artifacts", artifacts.size(), [&](size_t i) { return artifacts[i]->artifact_id(); },
      [&](size_t i) { return ToDocument(*artifacts[i]); }, &document));
  return document;
}

absl::StatusOr<json> Documents::Maker::Artifact(const Query& query) {
  std::string wanted = ParameterOf(query, "artifact");
  if (wanted.empty()) {
    return absl::InvalidArgumentError(
        "show artifact: the parameter artifact is missing; add artifact=KEY or artifact=ID to the address");
  }
  // A key was given: the document is of the artifact that the key names now.
  if (!IsArtifactId(wanted)) {
    TC_ASSIGN_OR_RETURN(const v1::ResolveKeyResponse resolved,
                        Ask([&](client::AdminClient& own, const RequestContext& context) {
                          return own.ResolveKey(context, wanted);
                        }));
    wanted = resolved.key().artifact_id();
  }
  TC_ASSIGN_OR_RETURN(v1::Artifact artifact,
                      Ask([&](client::AdminClient& own, const RequestContext& context) {
                        return own.DescribeArtifact(context, wanted);
                      }));
  std::vector<v1::Replica> replicas(artifact.replicas().begin(), artifact.replicas().end());
  // Two nodes may report replicas of the same id.
  const auto key = [](const v1::Replica& replica) {
    return absl::StrCat(replica.node_id(), "/", replica.replica_id());
  };
  std::ranges::sort(replicas, {}, key);
  // The replicas are paged by themselves, and then put where the message has them.
  artifact.clear_replicas();
  json document = json::object();
  TC_RETURN_IF_ERROR(AddPage(
      query, "replicas", replicas.size(), [&](size_t i) { return key(replicas[i]); },
      [&](size_t i) { return ToDocument(replicas[i]); }, &document));
  document["artifact"] = ToDocument(artifact);
  document["artifact"]["replicas"] = std::move(document["replicas"]);
  document.erase("replicas");
  document["names"] = json::object();
  const auto by_id = NodesById();
  std::set<std::string> shown;
  for (const json& row : document["artifact"]["replicas"]) shown.insert(row.value("node_id", ""));
  for (const v1::Origin& origin : artifact.origins()) shown.insert(origin.node_id());
  if (by_id.ok()) {
    for (const auto& [node_id, node] : *by_id) {
      if (shown.contains(node_id)) document["names"][node_id] = node.name();
    }
  }
  return document;
}

}  // namespace tensorcast::dashboard
