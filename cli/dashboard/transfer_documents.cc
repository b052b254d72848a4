#include <algorithm>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/dashboard/document_maker.h"
#include "cli/dashboard/paging.h"
#include "cli/explain/explain.h"
#include "cli/explain/find_transfer.h"
#include "cli/explain/hops.h"
#include "cli/explain/source_details.h"
#include "rpc/convert/convert.h"
#include "rpc/convert/transfer_reports.h"

namespace tensorcast::dashboard {
namespace {

using nlohmann::json;

constexpr absl::Duration kRecent = absl::Seconds(10);  // edges of transfers that ended are shown for so long
// A document has at most so many rows. What is left out is counted.
constexpr size_t kMaxRunning = 500;
constexpr size_t kMaxRecent = 100;

// Bytes a second since the previous look, or since the transfer began where there was none.
double TransferRate(const NodeStatus& status, const v1::TransferReport& report) {
  if (status.previous.has_value()) {
    const auto before = status.previous->transfer_bytes.find(report.transfer_id());
    if (before != status.previous->transfer_bytes.end()) {
      return RateOf(report.bytes(), before->second, status.counters.at - status.previous->at);
    }
  }
  const absl::Time start = rpc::FromProto(report.start());
  return start == absl::UnixEpoch() ? 0 : RateOf(report.bytes(), 0, rpc::FromProto(report.end()) - start);
}

// What one receiver got from one source over one lane.
struct Edge {
  uint64_t transfers = 0;
  uint64_t bytes = 0;
  double rate = 0;
};
using Edges = std::map<std::tuple<std::string, std::string, std::string, bool>, Edge>;

void AddEdges(const std::string& receiver, const v1::TransferReport& report, bool running, Edges* edges) {
  for (const v1::SourceReport& source : report.sources()) {
    // A source that is still used is shown before its first chunk has come.
    if (source.bytes() == 0 && !(running && !source.has_left())) continue;
    Edge& edge = (*edges)[{source.source(), receiver, source.lane(), running && !source.has_left()}];
    const absl::Time left = rpc::FromProto(source.has_left() ? source.left() : report.end());
    ++edge.transfers;
    edge.bytes += source.bytes();
    edge.rate += RateOf(source.bytes(), 0, left - rpc::FromProto(source.joined()));
  }
}

}  // namespace

absl::StatusOr<json> Documents::Maker::Transfers(const Query& query) {
  json problems = json::array();
  TC_ASSIGN_OR_RETURN(std::vector<v1::Node> nodes, KnownNodes(&problems));
  std::erase_if(nodes, [&](const v1::Node& node) { return !IsIn(query, node); });
  const auto statuses = AskNodes(nodes);
  json running = json::array(), shown = json::array();
  std::vector<std::pair<absl::Time, json>> recent;
  Edges edges;
  size_t asked = 0, left_out = 0;
  for (size_t i = 0; i < statuses.size(); ++i) {
    const v1::Node& node = nodes[i];
    shown.push_back({{"node_id", node.node_id()},
                     {"name", node.name()},
                     {"zone", LabelOf(node, "zone")},
                     {"rack", LabelOf(node, "rack")}});
    if (!statuses[i].ok()) {
      problems.push_back(Problem(absl::StrCat("node ", node.name()), statuses[i].status()));
      continue;
    }
    ++asked;
    const NodeStatus& status = **statuses[i];
    const auto row = [&](const v1::TransferReport& report) -> json {
      return {{"node_id", node.node_id()}, {"node", node.name()}, {"transfer", ToDocument(report)}};
    };
    for (const v1::TransferReport& report : status.status.running_transfers()) {
      AddEdges(node.name(), report, /*running=*/true, &edges);
      if (running.size() == kMaxRunning) {
        ++left_out;
        continue;
      }
      running.push_back(row(report));
      running.back()["bytes_per_second"] = static_cast<uint64_t>(TransferRate(status, report));
    }
    for (const v1::TransferReport& report : status.status.recent_transfers()) {
      const absl::Time end = rpc::FromProto(report.end());
      if (end > absl::Now() - kRecent) AddEdges(node.name(), report, /*running=*/false, &edges);
      recent.emplace_back(end, row(report));
    }
  }
  // The newest come first, of all nodes together.
  std::ranges::stable_sort(recent, std::greater<>(), &std::pair<absl::Time, json>::first);
  json rows = json::array();
  size_t bytes = running.dump(-1, ' ', false, json::error_handler_t::replace).size();
  // What moves comes first where a document would be too large. Rows go by the average size of one, so that
  // the rest need not be written out again for each.
  while (bytes > kMaxPageBytes && !running.empty()) {
    bytes -= bytes / running.size();
    running.erase(running.size() - 1);
    ++left_out;
  }
  bytes = 0;
  for (auto& [end, one] : recent) {
    bytes += one.dump(-1, ' ', false, json::error_handler_t::replace).size();
    if (rows.size() == kMaxRecent || bytes > kMaxPageBytes / 2) break;
    rows.push_back(std::move(one));
  }
  left_out += recent.size() - rows.size();
  json edge_rows = json::array();
  for (const auto& [key, edge] : edges) {
    const auto& [source, receiver, lane, is_running] = key;
    // The document is bounded, as its lists are.
    if (edge_rows.size() == 2000) break;
    edge_rows.push_back({{"source", source},
                         {"receiver", receiver},
                         {"lane", lane},
                         {"running", is_running},
                         {"transfers", edge.transfers},
                         {"bytes", edge.bytes},
                         {"bytes_per_second", static_cast<uint64_t>(edge.rate)}});
  }
  return json{{"running", std::move(running)},
              {"recent", std::move(rows)},
              {"edges", std::move(edge_rows)},
              {"nodes", std::move(shown)},
              {"asked", asked},
              {"not_asked", nodes.size() - statuses.size()},
              {"left_out", left_out},
              {"problems", std::move(problems)}};
}

absl::StatusOr<json> Documents::Maker::Transfer(const Query& query) {
  std::string wanted = ParameterOf(query, "transfer");
  if (wanted.empty()) wanted = "last";
  std::shared_ptr<client::AdminClient> client;
  if (const std::string name = ParameterOf(query, "node"); name.empty()) {
    TC_ASSIGN_OR_RETURN(client, Own());
  } else {
    KnowOwn();
    TC_ASSIGN_OR_RETURN(const v1::Node node, FindNode(name, nullptr));
    TC_ASSIGN_OR_RETURN(client, nodes_.ClientOf(node));
  }
  // The daemon asks the nodes on the way, so this is one call, however many hops there are.
  const RequestContext context = RequestContext::Background(kDocumentTimeout);
  TC_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, client->GetStatus(context));
  TC_ASSIGN_OR_RETURN(explain::FoundTransfer found, explain::FindTransfer(status, wanted));
  const auto explained = client->ExplainTransfer(context, found.report.transfer_id());
  if (explained.ok() && explained->hops_size() > 0) {
    // As it is now: it may have ended meanwhile.
    found = {.report = explained->hops(0).transfer(), .under_way = explained->hops(0).under_way()};
  }
  TC_ASSIGN_OR_RETURN(const TransferReport report, rpc::FromProto(found.report));
  explain::Route route;
  if (explained.ok()) route = explain::RouteOf(*explained);
  std::vector<explain::SourceDetails> sources = explain::DetailsOf(route, report);
  if (!explained.ok()) {
    // No error of the document: what the others do not tell is said to be unknown.
    for (explain::SourceDetails& detail : sources) detail.problem = std::string(explained.status().message());
  }
  const std::string analysis = explain::AnalysisJson(report, sources, route);
  return json{{"transfer", ToDocument(found.report)},
              {"under_way", found.under_way},
              {"analysis", json::parse(analysis, nullptr, /*allow_exceptions=*/false)}};
}

}  // namespace tensorcast::dashboard
