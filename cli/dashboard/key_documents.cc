#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/dashboard/document_maker.h"
#include "cli/dashboard/paging.h"

namespace tensorcast::dashboard {

using nlohmann::json;

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
  const v1::Key& key = resolved.key();
  std::vector<std::pair<uint64_t, std::string>> revisions = {{key.revision(), key.artifact_id()}};
  for (const v1::KeyVersion& version : key.earlier()) {
    revisions.emplace_back(version.revision(), version.artifact_id());
  }
  // The newest first: a node counts with the first version that it has.
  std::map<std::string, uint64_t> newest;  // by node id
  json document = {{"key", ToDocument(key)}, {"revisions", json::array()}};
  for (const auto& [revision, artifact_id] : revisions) {
    const auto artifact = Ask([&, id = artifact_id](client::AdminClient& own, const RequestContext& context) {
      return own.DescribeArtifact(context, id);
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
  }
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
