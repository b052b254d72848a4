#include "cli/explain/top.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/explain/analysis.h"
#include "cli/explain/hops.h"
#include "cli/output/output.h"
#include "rpc/convert/convert.h"
#include "rpc/convert/transfer_reports.h"

namespace tensorcast::explain {
namespace {

using cli::FormatBytes;
using cli::FormatRate;
using cli::FormatSeconds;
using cli::Table;

constexpr int kPoolWidth = 30;
constexpr int kProgressWidth = 20;
constexpr size_t kIdWidth = 8;

// Those of a node's reports that this program understands; none of a node that did not answer.
std::vector<TransferReport> ReportsOf(const NodeView& node, bool running) {
  std::vector<TransferReport> reports;
  if (!node.status.has_value()) return reports;
  for (const v1::TransferReport& message :
       running ? node.status->running_transfers() : node.status->recent_transfers()) {
    if (absl::StatusOr<TransferReport> report = rpc::FromProto(message); report.ok()) {
      reports.push_back(*std::move(report));
    }
  }
  return reports;
}
std::vector<TransferReport> RunningOn(const NodeView& node) { return ReportsOf(node, /*running=*/true); }
std::vector<TransferReport> EndedOn(const NodeView& node) { return ReportsOf(node, /*running=*/false); }

// A gauge, such as "[#####     ]". Anything more than nothing has a mark, however small its share.
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
    return absl::StrCat(text, "this daemon only, because the global store does not answer: ", view.problem,
                        "\n");
  }
  const v1::GetClusterStatusResponse& cluster = *view.cluster;
  return absl::StrCat(text, cluster.nodes_size(), " nodes, ", cluster.artifacts(), " artifacts, ",
                      cluster.keys(), " keys, ", cluster.replicas(), " replicas, ", cluster.active_grants(),
                      " grants running, metadata in ", cluster.metadata_store(), "\n");
}

std::string PoolLine(const v1::Pool& pool) {
  const absl::StatusOr<Location> location = rpc::FromProto(pool.location());
  const double share = Share(pool.used_bytes(), pool.capacity_bytes());
  std::string line = absl::StrFormat("  %-7s %s %3.0f %%  %s of %s, pinned %s, max so far %s",
                                     location.ok() ? location->ToString() : "?",
                                     Gauge(share, kPoolWidth, pool.used_bytes() > 0), share * 100,
                                     FormatBytes(pool.used_bytes()), FormatBytes(pool.capacity_bytes()),
                                     FormatBytes(pool.pinned_bytes()), FormatBytes(pool.high_water_bytes()));
  if (pool.partial_replicas() > 0) {
    absl::StrAppend(&line, ", ", FormatBytes(pool.partial_bytes()), " in ", pool.partial_replicas(),
                    " partial replicas");
  }
  if (pool.failed_allocations() > 0) {
    absl::StrAppend(&line, ", ", pool.failed_allocations(), " allocations did not fit");
  }
  return line + "\n";
}

std::string NodeText(const NodeView& node) {
  std::string text =
      absl::StrCat("\n", node.node.name(), " (", node.node.node_id().substr(0, kIdWidth), ") ",
                   node.node.grpc_address(), "  lanes ", absl::StrJoin(node.node.lanes(), ","));
  if (node.node.has_since_heartbeat()) {
    absl::StrAppend(&text, "  heartbeat ", FormatSeconds(rpc::FromProto(node.node.since_heartbeat())),
                    " s ago");
  }
  absl::StrAppend(&text, node.node.draining() ? "  draining\n" : "\n");
  // What the node says itself is newer than what the store heard with its last heartbeat.
  const bool own_word = node.status.has_value();
  for (const v1::Pool& pool : own_word ? node.status->pools() : node.node.pools()) text += PoolLine(pool);
  for (const int device :
       own_word ? node.status->node().unhealthy_devices() : node.node.unhealthy_devices()) {
    absl::StrAppend(&text, "  UNHEALTHY  gpu:", device, " gets no replicas\n");
  }
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

// Bytes a second since the frame before, where that is known of this id.
std::optional<double> RateSince(const TopView& view, const std::string& id, uint64_t bytes, SteadyTime now) {
  const auto before = view.before.find(id);
  if (before == view.before.end() || before->second.at >= now) return std::nullopt;
  const uint64_t had = std::min(before->second.bytes, bytes);
  return static_cast<double>(bytes - had) / absl::ToDoubleSeconds(now - before->second.at);
}

// Since the frame before; in the first one, since its first byte moved.
std::string LiveRate(const TransferReport& report, const TopView& view) {
  // A report that is not newer than the previous one (the daemon has not answered since) has no rate of its
  // own.
  if (const auto rate = RateSince(view, report.transfer_id, report.bytes, report.end); rate.has_value()) {
    return FormatRate(*rate);
  }
  const TransferParts parts = PartsOf(report);
  return FormatRate(report.bytes, parts.total() - parts.queue - parts.start);
}

// The only one in use, or how many there are; of one that does not say, the last that it read.
SourceInfo SourceShown(const TransferReport& report) {
  std::vector<SourceInfo> in_use;
  for (const SourceReport& source : report.sources) {
    if (source.left == SteadyTime::InfiniteFuture()) in_use.push_back(source.source);
  }
  if (in_use.size() == 1) return in_use.front();
  if (in_use.empty()) return report.stages.empty() ? SourceInfo{} : report.stages.back().source;
  const bool one_lane = std::ranges::all_of(
      in_use, [&](const SourceInfo& source) { return source.lane == in_use.front().lane; });
  return {.lane = one_lane ? in_use.front().lane : "several",
          .name = absl::StrCat(in_use.size(), " sources")};
}

std::string RunningText(const TopView& view, size_t limit) {
  std::string text = "\nunder way\n";
  Table table({"transfer", "node", "to", "done", "", "seconds", "rate", "lane", "from"});
  size_t all = 0;
  for (const NodeView& node : view.nodes) {
    for (const TransferReport& report : RunningOn(node)) {
      if (++all > limit) continue;
      const double share = Share(report.bytes, report.bytes_total);
      const SourceInfo source = SourceShown(report);
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
  if (all > limit) absl::StrAppend(&text, "  and ", all - limit, " more\n");
  return text;
}

// One node gives another bytes at this moment.
struct Feed {
  std::string from, to, lane, was, transfer;
  uint64_t bytes = 0;  // so far
  double rate = 0;     // a second
};

// A grant is one feed, which both of its ends report. The receiver's report is taken where there is one,
// since it knows the bytes that arrived; a source's report fills in for receivers that do not answer.
std::vector<Feed> FeedsNow(const TopView& view) {
  std::map<std::string, Feed> by_grant;
  std::map<std::string, std::string> names;
  for (const NodeView& node : view.nodes) {
    names[node.node.node_id()] = node.node.name();
    // A receiver knows how fast bytes arrive, so its reports come first.
    for (const TransferReport& report : RunningOn(node)) {
      for (const SourceReport& source : report.sources) {
        const std::string& grant = source.source.grant_id;
        if (grant.empty() || source.left != SteadyTime::InfiniteFuture()) continue;
        const double seconds = absl::ToDoubleSeconds(report.end - source.joined);
        const double so_far = seconds > 0 ? static_cast<double>(source.bytes) / seconds : 0;
        by_grant[grant] = {.from = source.source.name,
                           .to = node.node.name(),
                           .lane = source.source.lane,
                           .was = source.filling ? "filling" : "ready",
                           .transfer = report.transfer_id.substr(0, kIdWidth),
                           .bytes = source.bytes,
                           .rate = RateSince(view, grant, source.bytes, report.end).value_or(so_far)};
      }
    }
  }
  for (const NodeView& node : view.nodes) {
    if (!node.status.has_value()) continue;
    for (const v1::ServeReport& served : node.status->servings()) {
      if (served.has_closed() || by_grant.contains(served.grant_id())) continue;
      const auto receiver = names.find(served.receiver_node_id());
      by_grant[served.grant_id()] = {
          .from = node.node.name(),
          .to = receiver == names.end() ? served.receiver_node_id().substr(0, kIdWidth) : receiver->second,
          .lane = served.lane(),
          .was = "-",
          .transfer = "-",
          .bytes = served.bytes(),
          .rate = RateSince(view, served.grant_id(), served.bytes(), view.now).value_or(0)};
    }
  }
  std::vector<Feed> feeds;
  for (auto& [grant, feed] : by_grant) feeds.push_back(std::move(feed));
  std::ranges::stable_sort(feeds, std::greater(), &Feed::rate);
  return feeds;
}

std::string FeedsText(const TopView& view, size_t limit) {
  const std::vector<Feed> feeds = FeedsNow(view);
  if (feeds.empty()) return "";
  Table table({"from", "to", "lane", "was", "transfer", "bytes", "rate"});
  for (size_t i = 0; i < std::min(limit, feeds.size()); ++i) {
    const Feed& feed = feeds[i];
    table.Add({feed.from, feed.to, feed.lane, feed.was, feed.transfer, FormatBytes(feed.bytes),
               FormatRate(feed.rate)});
  }
  std::string text = absl::StrCat("\nsources and receivers\n", table.ToString());
  if (feeds.size() > limit) absl::StrAppend(&text, "  and ", feeds.size() - limit, " more\n");
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
  std::ranges::stable_sort(flows, std::greater(), &Flow::bytes);
  Table table({"by", "lane", "from", "bytes", "transfers", "rate", "rate moving"});
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
  std::ranges::stable_sort(all, std::greater(), [](const auto& one) { return one.second.end; });
  std::string text = "\nlast transfers (tensorcast explain TRANSFER --daemon NODE)\n";
  if (all.empty()) return text + "  none\n";
  Table table({"transfer", "node", "to", "bytes", "seconds", "rate", "lane", "from", "bounded by", "result"});
  for (size_t i = 0; i < std::min(limit, all.size()); ++i) {
    const TransferReport& report = all[i].second;
    const absl::Duration took = PartsOf(report).total();
    const SourceInfo source = report.stages.empty() ? SourceInfo{} : report.stages.back().source;
    table.Add({report.transfer_id.substr(0, kIdWidth), all[i].first, report.destination.ToString(),
               FormatBytes(report.bytes), FormatSeconds(took), FormatRate(report.bytes, took), source.lane,
               source.name, FindVerdict(report).part,
               report.status.ok() ? "ok" : absl::StatusCodeToString(report.status.code())});
  }
  return text + table.ToString();
}

}  // namespace

std::vector<Flow> FlowsOf(const std::string& receiver, const std::vector<TransferReport>& reports,
                          SteadyTime from, SteadyTime to) {
  std::map<std::pair<std::string, std::string>, Flow> by_source;
  for (const TransferReport& report : reports) {
    for (const StageReport& stage : report.stages) {
      const SteadyTime begin = std::max(stage.start, from);
      const SteadyTime end = std::min(stage.end, to);
      if (stage.stage != Stage::kFetch || end < begin) continue;
      Flow& flow = by_source[{stage.source.name, stage.source.lane}];
      flow.receiver = receiver;
      flow.source = stage.source.name;
      flow.lane = stage.source.lane;
      const absl::Duration all = stage.end - stage.start;
      // A stage that reaches over the window's edge counts by its part within, as if its bytes had come
      // evenly.
      const double share = all > absl::ZeroDuration() ? absl::FDivDuration(end - begin, all) : 1;
      flow.bytes += static_cast<uint64_t>(static_cast<double>(stage.bytes) * share);
      flow.moving += end - begin;
      ++flow.transfers;
    }
  }
  std::vector<Flow> flows;
  for (auto& [key, flow] : by_source) flows.push_back(std::move(flow));
  std::ranges::stable_sort(flows, std::greater(), &Flow::bytes);
  return flows;
}

std::map<std::string, Seen> SeenIn(const TopView& view) {
  std::map<std::string, Seen> seen;
  for (const NodeView& node : view.nodes) {
    for (const TransferReport& report : RunningOn(node)) {
      seen[report.transfer_id] = {.bytes = report.bytes, .at = report.end};
      for (const SourceReport& source : report.sources) {
        seen[source.source.grant_id] = {.bytes = source.bytes, .at = report.end};
      }
    }
    if (!node.status.has_value()) continue;
    for (const v1::ServeReport& served : node.status->servings()) {
      // The receiver's word, where there is one, stays.
      seen.insert({served.grant_id(), {.bytes = served.bytes(), .at = view.now}});
    }
  }
  return seen;
}

std::string RenderTop(const TopView& view, const TopLimits& limits) {
  std::string text = Header(view);
  for (const NodeView& node : view.nodes) text += NodeText(node);
  return absl::StrCat(text, RunningText(view, limits.running), FeedsText(view, limits.feeds),
                      FlowsText(view, limits.flows), VersionsText(view.keys, limits.versions),
                      TransfersText(view, limits.transfers));
}

}  // namespace tensorcast::explain
