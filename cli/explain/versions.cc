#include "cli/explain/versions.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/output/output.h"

namespace tensorcast::explain {
namespace {

constexpr size_t kDifferencesShown = 8;  // as many as a key keeps by default

std::string DifferencesText(const std::vector<KeptDifference>& differences) {
  if (differences.empty()) return "  no stored differences\n";
  std::vector<std::string> texts;
  for (const KeptDifference& difference : differences) {
    if (texts.size() == kDifferencesShown) break;
    texts.push_back(absl::StrCat(difference.base_revision, " -> ", difference.target_revision, " (",
                                 cli::FormatBytes(difference.image_bytes), ")"));
  }
  if (differences.size() > texts.size()) {
    texts.push_back(absl::StrCat("and ", differences.size() - texts.size(), " more"));
  }
  return absl::StrCat("  stored differences: ", absl::StrJoin(texts, ", "), "\n");
}

std::string KeyText(const KeyVersions& key, size_t max_nodes) {
  std::string text = absl::StrCat("\nversions of ", key.key, ", now at revision ", key.revision, "\n");
  if (key.nodes.empty()) {
    absl::StrAppend(&text, "  no node has a ready replica\n");
  } else {
    cli::Table table({"node", "revision", "behind"});
    for (size_t i = 0; i < std::min(max_nodes, key.nodes.size()); ++i) {
      const NodeVersion& node = key.nodes[i];
      table.Add({node.node, absl::StrCat(node.revision), node.behind == 0 ? "-" : absl::StrCat(node.behind)});
    }
    absl::StrAppend(&text, table.ToString());
    if (key.nodes.size() > max_nodes) {
      absl::StrAppend(&text, "  and ", key.nodes.size() - max_nodes,
                      " more nodes, which are not further behind\n");
    }
  }
  return absl::StrCat(text, DifferencesText(key.differences));
}

}  // namespace

std::vector<v1::KeyVersion> RevisionsOf(const v1::Key& key) {
  v1::KeyVersion current;
  current.set_artifact_id(key.artifact_id());
  current.set_revision(key.revision());
  *current.mutable_bound() = key.updated();
  std::vector<v1::KeyVersion> revisions = {std::move(current)};
  revisions.insert(revisions.end(), key.earlier().begin(), key.earlier().end());
  return revisions;
}

KeyVersions VersionsOf(const v1::Key& key, const std::vector<v1::Artifact>& versions,
                       const std::map<std::string, std::string>& names) {
  KeyVersions result{.key = key.name(), .revision = key.revision()};
  std::map<std::string, uint64_t> revision_of;  // by artifact; of a rollback the newest
  for (const v1::KeyVersion& version : RevisionsOf(key)) {
    revision_of.try_emplace(version.artifact_id(), version.revision());
  }
  std::map<std::string, uint64_t> newest;  // by node id
  for (const v1::Artifact& artifact : versions) {
    const auto revision = revision_of.find(artifact.artifact_id());
    if (revision == revision_of.end()) continue;
    for (const v1::Replica& replica : artifact.replicas()) {
      if (replica.state() != v1::REPLICA_STATE_READY) continue;
      // A node may have several versions; the newest one counts.
      uint64_t& of_node = newest[replica.node_id()];
      of_node = std::max(of_node, revision->second);
    }
    for (const v1::Difference& difference : artifact.differences()) {
      const auto base = revision_of.find(difference.base_id());
      // Its base may be a version that the key keeps no more.
      if (base == revision_of.end() || difference.target_id() != artifact.artifact_id()) continue;
      result.differences.push_back({.artifact_id = difference.artifact_id(),
                                    .base_revision = base->second,
                                    .target_revision = revision->second,
                                    .image_bytes = difference.image_bytes()});
    }
  }
  for (const auto& [node_id, revision] : newest) {
    const auto name = names.find(node_id);
    if (name == names.end()) continue;
    result.nodes.push_back({.node = name->second, .revision = revision, .behind = key.revision() - revision});
  }
  std::ranges::sort(result.nodes, {},
                    [](const NodeVersion& node) { return std::tie(node.revision, node.node); });
  std::ranges::sort(result.differences, std::ranges::greater(), [](const KeptDifference& difference) {
    return std::pair(difference.target_revision, difference.base_revision);
  });
  return result;
}

std::string VersionsText(const std::vector<KeyVersions>& keys, size_t nodes) {
  std::string text;
  for (const KeyVersions& key : keys) absl::StrAppend(&text, KeyText(key, nodes));
  return text;
}

std::string VersionsJson(const std::vector<KeyVersions>& keys) {
  nlohmann::json rows = nlohmann::json::array();
  for (const KeyVersions& key : keys) {
    nlohmann::json row = {{"key", key.key}, {"revision", key.revision}};
    row["nodes"] = row["differences"] = nlohmann::json::array();
    for (const NodeVersion& node : key.nodes) {
      row["nodes"].push_back({{"node", node.node}, {"revision", node.revision}, {"behind", node.behind}});
    }
    for (const KeptDifference& difference : key.differences) {
      row["differences"].push_back({{"artifact_id", difference.artifact_id},
                                    {"base_revision", difference.base_revision},
                                    {"target_revision", difference.target_revision},
                                    {"image_bytes", difference.image_bytes}});
    }
    rows.push_back(std::move(row));
  }
  return rows.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace tensorcast::explain
