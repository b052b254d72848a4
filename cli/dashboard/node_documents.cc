#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/dashboard/document_maker.h"
#include "cli/dashboard/paging.h"

namespace tensorcast::dashboard {
namespace {

using nlohmann::json;

absl::StatusOr<bool> HasState(const v1::Node& node, const std::string& state) {
  if (state.empty()) return true;
  if (state == "draining") return node.draining();
  if (state == "unreachable") return node.unreachable();
  if (state == "unhealthy") return !node.unhealthy_devices().empty();
  if (state == "late") return IsLate(node);
  if (state == "ok") {
    return !node.draining() && !node.unreachable() && node.unhealthy_devices().empty() && !IsLate(node);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("list nodes: state is ", state, "; give ok, draining, unreachable, unhealthy or late"));
}

}  // namespace

absl::StatusOr<json> Documents::Maker::Nodes(const Query& query) {
  json document = {{"problems", json::array()}};
  TC_ASSIGN_OR_RETURN(const std::vector<v1::Node> all, KnownNodes(&document["problems"]));
  const std::string text = ParameterOf(query, "q");
  const std::string state = ParameterOf(query, "state");
  TC_RETURN_IF_ERROR(HasState(v1::Node(), state).status());  // also where no node has any
  std::vector<const v1::Node*> nodes;
  for (const v1::Node& node : all) {
    TC_ASSIGN_OR_RETURN(const bool in_state, HasState(node, state));
    const bool named = absl::StrContains(node.name(), text) || absl::StrContains(node.node_id(), text);
    if (in_state && named && IsIn(query, node)) nodes.push_back(&node);
  }
  TC_RETURN_IF_ERROR(AddPage(
      query, "nodes", nodes.size(), [&](size_t i) { return nodes[i]->name(); },
      [&](size_t i) { return NodeRow(*nodes[i]); }, &document));
  return document;
}

absl::StatusOr<json> Documents::Maker::Node(const Query& query) {
  json document = {{"problems", json::array()}, {"names", json::object()}, {"keys", json::object()}};
  TC_ASSIGN_OR_RETURN(const v1::Node node, FindNode(ParameterOf(query, "node"), &document["problems"]));
  document["node"] = NodeRow(node);
  const auto status = AskNodes({node}).front();
  if (!status.ok()) {
    document["problems"].push_back(Problem(absl::StrCat("node ", node.name()), status.status()));
    return document;
  }
  document["status"] = StatusRow((*status)->status);
  // Servings have the ids of their receivers. The page shows names.
  const auto by_id = NodesById();
  for (const v1::ServeReport& serving : (*status)->status.servings()) {
    if (!by_id.ok()) break;
    const auto receiver = by_id->find(serving.receiver_node_id());
    if (receiver != by_id->end()) document["names"][receiver->first] = receiver->second.name();
  }
  TC_ASSIGN_OR_RETURN(const auto client, nodes_.ClientOf(node));
  auto replicas = client->ListReplicas(RequestContext::Background(kDocumentTimeout), "");
  if (!replicas.ok()) {
    document["problems"].push_back(
        Problem(absl::StrCat("replicas of node ", node.name()), replicas.status()));
    return document;
  }
  std::ranges::sort(*replicas, {}, &v1::Replica::replica_id);
  TC_RETURN_IF_ERROR(AddPage(
      query, "replicas", replicas->size(), [&](size_t i) { return (*replicas)[i].replica_id(); },
      [&](size_t i) { return ToDocument((*replicas)[i]); }, &document));
  // The page needs the keys of its own artifacts alone.
  std::set<std::string> shown;
  for (const json& replica : document["replicas"]) shown.insert(replica.value("artifact_id", ""));
  if (const auto keys = AllKeys(); keys.ok()) {
    for (const v1::Key& key : (*keys)->keys()) {
      if (shown.contains(key.artifact_id())) document["keys"][key.artifact_id()].push_back(key.name());
    }
  }
  return document;
}

}  // namespace tensorcast::dashboard
