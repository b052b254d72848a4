#include "cli/explain/top.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/explain/analysis.h"
#include "cli/explain/flows.h"
#include "cli/output/output.h"
#include "rpc/convert/convert.h"

namespace tensorcast::explain {
namespace {

using cli::FormatBytes;
using cli::FormatRate;
using cli::FormatSeconds;
using cli::Table;

constexpr int kPoolWidth = 30;
constexpr int kProgressWidth = 20;
constexpr size_t kIdWidth = 8;

using Messages = google::protobuf::RepeatedPtrField<v1::TransferReport>;

// Those of them that this program understands.
std::vector<TransferReport> Understood(const Messages& messages) {
  std::vector<TransferReport> reports;
  for (const v1::TransferReport& message : messages) {
    if (absl::StatusOr<TransferReport> report = rpc::FromProto(message); report.ok()) {
      reports.push_back(*std::move(report));
    }
  }
  return reports;
}

std::vector<TransferReport> EndedOn(const NodeView& node) {
  return node.status.has_value() ? Understood(node.status->recent_transfers())
                                 : std::vector<TransferReport>();
}

std::vector<TransferReport> RunningOn(const NodeView& node) {
  return node.status.has_value() ? Understood(node.status->running_transfers())
                                 : std::vector<TransferReport>();
}

// "[#####     ]"
std::string Gauge(double share, int width, bool more_than_nothing) {
  const int filled = std::clamp(static_cast<int>(share * width + 0.5), more_than_nothing ? 1 : 0, width);
  return absl::StrCat("[", std::string(filled, '#'), std::string(width - filled, ' '), "]");
}

double Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string Header(const TopView& view) {
  std::string text = absl::StrCat(
      "tensorcast top  ", absl::FormatTime("%Y-%m-%d %H:%M:%S", ToWallTime(view.now), absl::UTCTimeZone()),
      " UTC\n");
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
  const double share = Share(pool.used_bytes(), pool.capacity_bytes());
  std::string line = absl::StrFormat("  %-7s %s %3.0f %%  %s of %s, pinned %s, at most %s",
                                     location.ok() ? location->ToString() : "?",
                                     Gauge(share, kPoolWidth, pool.used_bytes() > 0), share * 100,
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
  absl::StrAppend(&text, "  running ", node.status->active_transfers(), " transfers, ",
                  node.status->active_servings(), " servings; ", node.status->replicas(), " replicas, ",
                  node.status->leases(), " leases, ", node.status->handle_connections(), " connections\n");
  for (const v1::LaneTotal& lane : node.status->lanes()) {
    absl::StrAppend(&text, "  ", lane.lane(), " so far: ", FormatBytes(lane.bytes_received()), " received, ",
                    FormatBytes(lane.bytes_served()), " served\n");
  }
  return text;
}

// Since the frame before; in the first one, since its first byte moved.
std::string LiveRate(const TransferReport& report, const TopView& view) {
  const auto before = view.before.find(report.transfer_id);
  // A report that is no newer than the one before it (the daemon did not answer since) has no rate of its
  // own.
  if (before != view.before.end() && before->second.at < report.end) {
    const uint64_t had = std::min(before->second.bytes, report.bytes);
    return FormatRate(report.bytes - had, report.end - before->second.at);
  }
  const TransferParts parts = PartsOf(report);
  return FormatRate(report.bytes, parts.total() - parts.queue - parts.start);
}

std::string RunningText(const TopView& view, size_t limit) {
  std::string text = "\nunder way\n";
  Table table({"transfer", "node", "to", "done", "", "seconds", "GB/s", "lane", "from"});
  size_t shown = 0, all = 0;
  for (const NodeView& node : view.nodes) {
    for (const TransferReport& report : RunningOn(node)) {
      if (++all > limit) continue;
      ++shown;
      const double share = Share(report.bytes, report.bytes_total);
      const SourceInfo source = report.stages.empty() ? SourceInfo{} : report.stages.back().source;
      const bool waits = report.start < report.queued;
      table.Add({report.transfer_id.substr(0, kIdWidth), node.node.name(), report.destination.ToString(),
                 Gauge(share, kProgressWidth, report.bytes > 0),
                 absl::StrFormat("%.0f %% of %s", share * 100, FormatBytes(report.bytes_total)),
                 FormatSeconds(report.end - report.queued), waits ? "-" : LiveRate(report, view), source.lane,
                 waits ? "(waits for its turn)" : source.name});
    }
  }
  if (all == 0) return text + "  nothing\n";
  text += table.ToString();
  if (all > shown) absl::StrAppend(&text, "  and ", all - shown, " more\n");
  return text;
}

std::string FlowsText(const TopView& view, size_t limit) {
  std::vector<Flow> flows;
  for (const NodeView& node : view.nodes) {
    std::vector<TransferReport> reports = EndedOn(node);
    for (TransferReport& running : RunningOn(node)) reports.push_back(std::move(running));
    for (Flow& flow : FlowsOf(node.node.name(), reports, view.now - view.window, view.now)) {
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
    for (TransferReport& report : EndedOn(node)) all.emplace_back(node.node.name(), std::move(report));
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

std::map<std::string, Seen> SeenIn(const TopView& view) {
  std::map<std::string, Seen> seen;
  for (const NodeView& node : view.nodes) {
    for (const TransferReport& report : RunningOn(node)) {
      seen[report.transfer_id] = {.bytes = report.bytes, .at = report.end};
    }
  }
  return seen;
}

std::string RenderTop(const TopView& view, const TopLimits& limits) {
  std::string text = Header(view);
  for (const NodeView& node : view.nodes) text += NodeText(node);
  return absl::StrCat(text, RunningText(view, limits.running), FlowsText(view, limits.flows),
                      TransfersText(view, limits.transfers));
}

}  // namespace tensorcast::explain
