#include "tools/explain/top.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "rpc/convert/convert.h"
#include "tools/cli/output.h"
#include "tools/explain/analysis.h"
#include "tools/explain/flows.h"

namespace tensorcast::explain {
namespace {

using cli::FormatBytes;
using cli::FormatRate;
using cli::FormatSeconds;
using cli::Table;

constexpr int kPoolWidth = 30;
constexpr size_t kIdWidth = 8;

// A node's reports that this program understands.
std::vector<TransferReport> ReportsOf(const NodeView& node) {
  std::vector<TransferReport> reports;
  if (!node.status.has_value()) return reports;
  for (const v1::TransferReport& message : node.status->recent_transfers()) {
    if (absl::StatusOr<TransferReport> report = rpc::FromProto(message); report.ok()) {
      reports.push_back(*std::move(report));
    }
  }
  return reports;
}

std::string Header(const TopView& view) {
  std::string text = absl::StrCat(
      "tensorcast top  ", absl::FormatTime("%Y-%m-%d %H:%M:%S", view.now, absl::UTCTimeZone()), " UTC\n");
  if (!view.cluster.has_value()) {
    return absl::StrCat(text, "only this daemon: the global store does not answer: ", view.problem, "\n");
  }
  const v1::GetClusterStatusResponse& cluster = *view.cluster;
  return absl::StrCat(text, cluster.nodes_size(), " nodes, ", cluster.artifacts(), " artifacts, ",
                      cluster.keys(), " keys, ", cluster.replicas(), " replicas, ", cluster.active_grants(),
                      " grants running, metadata in ", cluster.metadata_store(), "\n");
}

std::string PoolLine(const v1::Pool& pool) {
  const absl::StatusOr<Location> location = rpc::FromProto(pool.location());
  const double share = pool.capacity_bytes() == 0 ? 0
                                                  : static_cast<double>(pool.used_bytes()) /
                                                        static_cast<double>(pool.capacity_bytes());
  const int filled =
      std::clamp(static_cast<int>(share * kPoolWidth + 0.5), pool.used_bytes() > 0 ? 1 : 0, kPoolWidth);
  std::string line = absl::StrFormat("  %-7s [%s%s] %3.0f %%  %s of %s, pinned %s, at most %s",
                                     location.ok() ? location->ToString() : "?", std::string(filled, '#'),
                                     std::string(kPoolWidth - filled, ' '), share * 100,
                                     FormatBytes(pool.used_bytes()), FormatBytes(pool.capacity_bytes()),
                                     FormatBytes(pool.pinned_bytes()), FormatBytes(pool.high_water_bytes()));
  if (pool.failed_allocations() > 0) absl::StrAppend(&line, ", ", pool.failed_allocations(), " did not fit");
  return line + "\n";
}

std::string NodeText(const NodeView& node) {
  std::string text =
      absl::StrCat("\n", node.node.name(), " (", node.node.node_id().substr(0, kIdWidth), ") ",
                   node.node.grpc_address(), "  lanes ", absl::StrJoin(node.node.lanes(), ","));
  if (node.node.has_since_heartbeat()) {
    absl::StrAppend(&text, "  heard ", FormatSeconds(rpc::FromProto(node.node.since_heartbeat())), " s ago");
  }
  absl::StrAppend(&text, node.node.draining() ? "  draining\n" : "\n");
  const bool own_word = node.status.has_value();
  for (const v1::Pool& pool : own_word ? node.status->pools() : node.node.pools()) text += PoolLine(pool);
  if (!own_word) return absl::StrCat(text, "  no details: ", node.problem, "\n");
  return absl::StrCat(text, "  running ", node.status->active_transfers(), " transfers, ",
                      node.status->active_servings(), " servings; ", node.status->replicas(), " replicas, ",
                      node.status->leases(), " leases, ", node.status->handle_connections(),
                      " connections\n");
}

std::string FlowsText(const TopView& view, size_t limit) {
  std::vector<Flow> flows;
  for (const NodeView& node : view.nodes) {
    for (Flow& flow : FlowsOf(node.node.name(), ReportsOf(node), view.now - view.window, view.now)) {
      flows.push_back(std::move(flow));
    }
  }
  std::string text = absl::StrCat("\nreceived in the last ", absl::FormatDuration(view.window), "\n");
  if (flows.empty()) return text + "  nothing\n";
  std::stable_sort(flows.begin(), flows.end(),
                   [](const Flow& a, const Flow& b) { return a.bytes > b.bytes; });
  Table table({"by", "lane", "from", "bytes", "transfers", "GB/s", "GB/s moving"});
  for (size_t i = 0; i < std::min(limit, flows.size()); ++i) {
    const Flow& flow = flows[i];
    table.Add({flow.receiver, flow.lane, flow.source, FormatBytes(flow.bytes), absl::StrCat(flow.transfers),
               FormatRate(flow.bytes, view.window), FormatRate(flow.bytes, flow.moving)});
  }
  return text + table.ToString();
}

std::string TransfersText(const TopView& view, size_t limit) {
  std::vector<std::pair<std::string, TransferReport>> all;
  for (const NodeView& node : view.nodes) {
    for (TransferReport& report : ReportsOf(node)) all.emplace_back(node.node.name(), std::move(report));
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.second.end > b.second.end; });
  std::string text = "\nlast transfers (tensorcast explain TRANSFER --daemon NODE)\n";
  if (all.empty()) return text + "  none\n";
  Table table({"transfer", "node", "to", "bytes", "seconds", "GB/s", "lane", "from", "bounded by", "result"});
  for (size_t i = 0; i < std::min(limit, all.size()); ++i) {
    const TransferReport& report = all[i].second;
    const absl::Duration took = PartsOf(report).total();
    const SourceInfo source = report.stages.empty() ? SourceInfo{} : report.stages.back().source;
    table.Add({report.transfer_id.substr(0, kIdWidth), all[i].first, report.destination.ToString(),
               FormatBytes(report.bytes), FormatSeconds(took), FormatRate(report.bytes, took), source.lane,
               source.name, FindBound(report).part,
               report.status.ok() ? "ok" : absl::StatusCodeToString(report.status.code())});
  }
  return text + table.ToString();
}

}  // namespace

std::string RenderTop(const TopView& view, const TopLimits& limits) {
  std::string text = Header(view);
  for (const NodeView& node : view.nodes) text += NodeText(node);
  return absl::StrCat(text, FlowsText(view, limits.flows), TransfersText(view, limits.transfers));
}

}  // namespace tensorcast::explain
