#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/dashboard/document_maker.h"
#include "cli/dashboard/paging.h"
#include "cli/explain/versions.h"

namespace tensorcast::dashboard {
namespace {

using nlohmann::json;

// Those between two versions that the key keeps, beside the size of the version that each makes.
void AddDifferences(const v1::Key& key, const std::vector<v1::Artifact>& versions, json* document) {
  std::map<uint64_t, uint64_t> whole_bytes;  // by revision
  for (const v1::KeyVersion& version : explain::RevisionsOf(key)) {
    const auto artifact = std::ranges::find(versions, version.artifact_id(), &v1::Artifact::artifact_id);
    if (artifact != versions.end()) whole_bytes[version.revision()] = artifact->image_bytes();
  }
  (*document)["differences"] = json::array();
  for (const explain::KeptDifference& difference :
       explain::VersionsOf(key, versions, /*names=*/{}).differences) {
    (*document)["differences"].push_back({{"artifact_id", difference.artifact_id},
                                          {"base_revision", difference.base_revision},
                                          {"target_revision", difference.target_revision},
                                          {"image_bytes", difference.image_bytes},
                                          {"whole_bytes", whole_bytes[difference.target_revision]}});
  }
}

}  // namespace

absl::StatusOr<json> Documents::Maker::Keys(const Query& query) {
  TC_ASSIGN_OR_RETURN(const auto all, AllKeys());
  std::vector<const v1::Key*> keys;
  for (const v1::Key& key : all->keys()) {
    if (absl::StartsWith(key.name(), ParameterOf(query, "prefix"))) keys.push_back(&key);
  }
  std::ranges::sort(keys, {}, &v1::Key::name);
  json document = json::object();
  TC_RETURN_IF_ERROR(AddPage(
      query, "keys", keys.size(), [&](size_t i) { return keys[i]->name(); },
      [&](size_t i) { return ToDocument(*keys[i]); }, &document));
  return document;
}

absl::StatusOr<json> Documents::Maker::Key(const Query& query) {
  // The global store itself is asked, since what this node remembers may be behind.
  TC_ASSIGN_OR_RETURN(const v1::ResolveKeyResponse resolved,
                      Ask([&](client::AdminClient& own, const RequestContext& context) {
                        return own.ResolveKey(context, ParameterOf(query, "name"), /*confirmed=*/true);
                      }));
  // One call per kept version follows. A key keeps few versions, and the document is polled by one thread for
  // all tabs.
  const v1::Key& key = resolved.key();
  std::vector<v1::Artifact> versions;
  // The newest first: a node counts with the first version that it has.
  std::map<std::string, uint64_t> newest;  // by node id
  json document = {{"key", ToDocument(key)}, {"revisions", json::array()}};
  for (const v1::KeyVersion& version : explain::RevisionsOf(key)) {
    const std::string& artifact_id = version.artifact_id();
    const uint64_t revision = version.revision();
    auto artifact = Ask([&](client::AdminClient& own, const RequestContext& context) {
      return own.DescribeArtifact(context, artifact_id);
    });
    // A version that was deleted meanwhile does not fail the document: no node has it.
    if (!artifact.ok() && !absl::IsNotFound(artifact.status())) return artifact.status();
    size_t count = 0;
    if (artifact.ok()) {
      for (const v1::Replica& replica : artifact->replicas()) {
        const bool ready = replica.state() == v1::REPLICA_STATE_READY;
        if (ready && newest.try_emplace(replica.node_id(), revision).second) ++count;
      }
    }
    document["revisions"].push_back({{"revision", revision}, {"artifact_id", artifact_id}, {"nodes", count}});
    if (artifact.ok()) versions.push_back(*std::move(artifact));
  }
  AddDifferences(key, versions, &document);
  TC_ASSIGN_OR_RETURN(const auto by_id, NodesById());
  struct Row {
    std::string key;
    json row;
  };
  std::vector<Row> rows;
  for (const auto& [node_id, revision] : newest) {
    const auto found = by_id.find(node_id);
    // A node that has left the cluster does not belong to the rollout.
    if (found == by_id.end()) continue;
    const v1::Node& node = found->second;
    // Those that are furthest behind come first, and a row's key says so.
    rows.push_back({absl::StrCat(absl::Dec(revision, absl::kZeroPad16), "/", node.name()),
                    {{"node_id", node_id},
                     {"name", node.name()},
                     {"zone", LabelOf(node, "zone")},
                     {"rack", LabelOf(node, "rack")},
                     {"revision", revision},
                     {"behind", key.revision() - revision}}});
  }
  std::ranges::sort(rows, {}, &Row::key);
  document["registered"] = by_id.size();
  TC_RETURN_IF_ERROR(AddPage(
      query, "nodes", rows.size(), [&](size_t i) { return rows[i].key; },
      [&](size_t i) { return rows[i].row; }, &document));
  return document;
}

}  // namespace tensorcast::dashboard
