#include "cli/explain/explain.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/steady_time.h"
#include "cli/explain/analysis.h"
#include "cli/output/output.h"

namespace tensorcast::explain {
namespace {

using cli::FormatBytes;
using cli::FormatRate;
using cli::FormatSeconds;
using cli::Table;

constexpr size_t kSourceWidth = 28;

// The end of a long path says more than its beginning.
std::string Short(const std::string& source) {
  if (source.size() <= kSourceWidth) return source;
  return absl::StrCat("...", source.substr(source.size() - (kSourceWidth - 3)));
}

// The bytes that it brought; for a transfer that did not bring all, of how many.
std::string Moved(const TransferReport& report) {
  const std::string bytes = FormatBytes(report.bytes);
  if (report.bytes >= report.bytes_total) return bytes;
  return absl::StrCat(bytes, " of ", FormatBytes(report.bytes_total));
}

std::string Result(const TransferReport& report, const Beyond& beyond) {
  if (!beyond.under_way) return report.status.ok() ? "ok" : report.status.ToString();
  return report.start < report.queued ? "under way: waiting for its turn" : "under way";
}

std::string Headline(const TransferReport& report, const Beyond& beyond) {
  std::string text =
      absl::StrCat("transfer ", report.transfer_id, "\n  artifact  ", report.artifact_id, "\n  replica   ",
                   report.replica_id, " at ", report.destination.ToString(), "\n");
  if (report.trace.trace_id != TraceContext().trace_id) {
    absl::StrAppend(&text, "  trace     ", report.trace.TraceIdHex(), "\n");
  }
  const absl::Duration elapsed = PartsOf(report).total();
  absl::StrAppend(&text, "  moved     ", Moved(report), " in ", FormatSeconds(elapsed), " s, ",
                  FormatRate(report.bytes, elapsed), "\n");
  if (!beyond.under_way) {
    absl::StrAppend(&text, "  chunks    ", report.verified_chunks, " verified against the manifest, ",
                    report.refetched_chunks, " fetched again");
    if (report.reassigned_chunks > 0) {
      absl::StrAppend(&text, ", ", report.reassigned_chunks, " taken back from sources that were slow");
    }
    text += "\n";
  }
  return absl::StrCat(text, "  result    ", Result(report, beyond), "\n");
}

struct Bar {
  std::string what, lane, source;
  SteadyTime from, to;
};

// One bar for each stage and source, between those for the waiting before and the work after.
std::vector<Bar> BarsOf(const TransferReport& report, const TransferParts& parts) {
  std::vector<Bar> bars;
  const SteadyTime started = parts.begin + parts.queue;
  bars.push_back({"queue", "", "", parts.begin, started});
  bars.push_back({"start", "", "", started, started + parts.start});
  for (const StageReport& stage : report.stages) {
    bars.push_back({std::string(StageName(stage.stage)), stage.source.lane, Short(stage.source.name),
                    stage.start, stage.end});
  }
  bars.push_back({"finish", "", "", parts.end - parts.finish, parts.end});
  return bars;
}

// What takes no time at all gets no mark; anything else at least one.
std::string Draw(const Bar& bar, const TransferParts& parts, int width) {
  std::string cells(width, ' ');
  if (bar.to <= bar.from || parts.total() <= absl::ZeroDuration()) return cells;
  // A bar begins in the cell of its first moment and ends in that of its last. The small term keeps rounding
  // from moving a border that falls between two cells.
  const double scale = width / absl::ToDoubleSeconds(parts.total());
  const int first =
      static_cast<int>(std::floor(absl::ToDoubleSeconds(bar.from - parts.begin) * scale + 1e-9));
  const int past = static_cast<int>(std::ceil(absl::ToDoubleSeconds(bar.to - parts.begin) * scale - 1e-9));
  const int begin = std::clamp(first, 0, width - 1);
  const int end = std::clamp(past, begin + 1, width);
  std::fill(cells.begin() + begin, cells.begin() + end, '#');
  return cells;
}

std::string Chart(const TransferReport& report, int width) {
  const TransferParts parts = PartsOf(report);
  const std::vector<Bar> bars = BarsOf(report, parts);
  // Columns are as wide as their longest text, so that all bars begin in one place.
  size_t lanes = 0, sources = 0;
  for (const Bar& bar : bars) {
    lanes = std::max(lanes, bar.lane.size());
    sources = std::max(sources, bar.source.size());
  }
  const std::string total = absl::StrCat(FormatSeconds(parts.total()), " s");
  const int axis = std::max(width - 3, static_cast<int>(total.size()));
  std::string text =
      absl::StrFormat("%*s0 s%*s\n", static_cast<int>(6 + 2 + lanes + 2 + sources + 3), "", axis, total);
  for (const Bar& bar : bars) {
    absl::StrAppendFormat(&text, "%-6s  %-*s  %-*s  |%s| %s\n", bar.what, static_cast<int>(lanes), bar.lane,
                          static_cast<int>(sources), bar.source, Draw(bar, parts, width),
                          FormatSeconds(std::max(bar.to - bar.from, absl::ZeroDuration())));
  }
  return text;
}

// `busy` is summed over the chunks that were in the stage at once, so it may be longer than the time.
std::string Stages(const TransferReport& report) {
  absl::Duration busy;
  for (const StageReport& stage : report.stages) busy += stage.busy;
  Table table({"stage", "lane", "source", "bytes", "chunks", "seconds", "busy", "share", "at once", "rate",
               "rate each"});
  for (const StageReport& stage : report.stages) {
    const double share = busy > absl::ZeroDuration() ? absl::FDivDuration(stage.busy, busy) * 100 : 0;
    table.Add({std::string(StageName(stage.stage)), stage.source.lane, Short(stage.source.name),
               FormatBytes(stage.bytes), absl::StrCat(stage.chunks), FormatSeconds(stage.end - stage.start),
               FormatSeconds(stage.busy), absl::StrFormat("%.0f %%", share),
               absl::StrFormat("%.1f", AtOnce(stage)), FormatRate(stage.bytes, stage.end - stage.start),
               FormatRate(stage.bytes, stage.busy)});
  }
  return table.ToString();
}

// Seconds since the transfer was requested, as on the chart.
std::string Clock(const TransferReport& report, SteadyTime time) {
  return FormatSeconds(std::max(time - report.queued, absl::ZeroDuration()));
}

std::string Kind(const SourceReport& source) {
  if (source.source.grant_id.empty()) return "here";
  return source.filling ? "filling" : "ready";
}

// To a GPU, with the memory that its bytes came through.
std::string LaneText(const TransferReport& report, const SourceReport& source) {
  if (report.destination.kind != LocationKind::kGpu) return source.source.lane;
  return absl::StrCat(source.source.lane, source.direct ? " (host+device)" : " (host)");
}

// A table of the sources, in the order in which they joined. A source that could not be opened is only in
// Losses, since it has nothing to compare.
std::string Sources(const TransferReport& report) {
  uint64_t bytes = 0;
  for (const SourceReport& source : report.sources) bytes += source.bytes;
  // A share is given where there is something to share, else a dash.
  const auto part = [](double of, double all) {
    return all > 0 ? absl::StrFormat("%.0f %%", 100 * of / all) : std::string("-");
  };
  Table table({"source", "lane", "was", "came", "went", "bytes", "share", "chunks", "rate", "busy",
               "taken back", "lost"});
  for (const SourceReport& source : report.sources) {
    if (source.loss == SourceLoss::kNotOpened) continue;
    const bool in_use = source.left == SteadyTime::InfiniteFuture();
    const double used = absl::ToDoubleSeconds((in_use ? report.end : source.left) - source.joined);
    table.Add({Short(source.source.name), LaneText(report, source), Kind(source),
               Clock(report, source.joined), in_use ? "-" : Clock(report, source.left),
               FormatBytes(source.bytes), part(static_cast<double>(source.bytes), static_cast<double>(bytes)),
               absl::StrCat(source.chunks),
               FormatRate(used > 0 ? static_cast<double>(source.bytes) / used : 0.0),
               part(absl::ToDoubleSeconds(source.asked), used), absl::StrCat(source.reassigned_chunks),
               absl::StrCat(source.lost_chunks)});
  }
  return table.ToString();
}

// Without a default: a new kind of loss is a warning of the compiler.
std::string_view LossText(SourceLoss loss) {
  switch (loss) {
    case SourceLoss::kNotOpened:
      return "could not be opened";
    case SourceLoss::kDied:
      return "was given up";
    case SourceLoss::kTimeout:
      return "was given up because no bytes arrived";
    case SourceLoss::kBadDigest:
      return "was given up for wrong bytes";
  }
  return "was given up";
}

// Why each source left that did not stay to the end.
std::string Losses(const TransferReport& report) {
  std::string text;
  for (const SourceReport& source : report.sources) {
    if (!source.loss.has_value()) continue;
    absl::StrAppend(&text, "after ", Clock(report, source.left), " s ", source.source.lane, " ",
                    source.source.name, " ", LossText(*source.loss), ": ", source.status.ToString(), "\n");
    // The source's own node would have found damage that it holds: these bytes were changed on the way, or in
    // the memory of one end.
    if (*source.loss == SourceLoss::kBadDigest && !source.source.grant_id.empty()) {
      absl::StrAppend(&text, "  The damage arose between ", source.source.name,
                      " and this node: a node passes on only what it has verified.\n");
    }
  }
  if (!text.empty()) text += "\n";
  return text;
}

}  // namespace

std::string ExplainTransfer(const TransferReport& report, const Beyond& beyond, int bar_width) {
  std::string text =
      absl::StrCat(Headline(report, beyond), "\n", Chart(report, std::max(bar_width, 10)), "\n");
  if (!report.stages.empty()) absl::StrAppend(&text, Stages(report), "\n");
  if (!report.sources.empty()) absl::StrAppend(&text, Sources(report), "\n");
  absl::StrAppend(&text, Losses(report));
  if (!beyond.sources.empty()) absl::StrAppend(&text, SourcesText(beyond.sources), "\n");
  // The verdict comes last, below what it is drawn from.
  const Bound verdict = FindVerdict(report, beyond.sources);
  if (!report.status.ok()) {
    return absl::StrCat(text, "The transfer failed ", verdict.why, "\n", FailuresText(beyond.route));
  }
  return absl::StrCat(text, "Bounded by ", verdict.part, ": ", verdict.why, "\n", RouteText(beyond.route));
}

std::string AnalysisJson(const TransferReport& report, const std::vector<SourceDetails>& sources,
                         const Route& route) {
  const TransferParts parts = PartsOf(report);
  const Bound bound = FindVerdict(report, sources);
  // The names are part of the interface of `explain --json` (explain.h).
  nlohmann::json json;
  json["bound"] = {
      {"part", bound.part}, {"cause", bound.cause.name}, {"share", bound.share}, {"why", bound.why}};
  json["seconds"] = {
      {"total", absl::ToDoubleSeconds(parts.total())},  {"queue", absl::ToDoubleSeconds(parts.queue)},
      {"start", absl::ToDoubleSeconds(parts.start)},    {"moving", absl::ToDoubleSeconds(parts.moving)},
      {"gaps", absl::ToDoubleSeconds(parts.gaps)},      {"finish", absl::ToDoubleSeconds(parts.finish)},
      {"starved", absl::ToDoubleSeconds(parts.starved)}};
  absl::Duration busy;
  for (const StageReport& stage : report.stages) busy += stage.busy;
  json["stages"] = nlohmann::json::array();
  for (const StageReport& stage : report.stages) {
    json["stages"].push_back(
        {{"stage", StageName(stage.stage)},
         {"lane", stage.source.lane},
         {"source", stage.source.name},
         {"busy_share", busy > absl::ZeroDuration() ? absl::FDivDuration(stage.busy, busy) : 0.0},
         {"at_once", AtOnce(stage)}});
  }
  json["sources"] = nlohmann::json::array();
  for (const SourceDetails& detail : sources) {
    json["sources"].push_back({{"source", detail.source},
                               {"lane", detail.lane},
                               {"mapped", detail.mapped},
                               {"known", detail.served.has_value()},
                               {"bytes", detail.served ? detail.served->bytes() : 0},
                               {"requests", detail.served ? detail.served->requests() : 0},
                               {"reading_share", ReadingShare(detail)},
                               {"problem", detail.problem}});
  }
  json["bounding_hop"] = nullptr;
  if (const std::optional<BoundingHop> hop = FindBoundingHop(route); hop.has_value()) {
    json["bounding_hop"] = {{"from", hop->from},     {"to", hop->to},       {"lane", hop->lane},
                            {"part", hop->part},     {"cause", hop->cause}, {"why", hop->why},
                            {"silent", hop->silent}, {"steps", hop->steps}};
  }
  json["hops"] = nlohmann::json::array();
  for (const Hop& hop : route.hops) {
    json["hops"].push_back({{"node", hop.node},
                            {"replica", hop.replica_id},
                            {"known", hop.transfer.has_value()},
                            {"under_way", hop.under_way},
                            {"bytes_per_second", hop.transfer ? RateOf(*hop.transfer) : 0.0},
                            {"problem", hop.problem}});
  }
  // Names and errors come from elsewhere: bytes that are not UTF-8 are replaced instead of thrown at us.
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace tensorcast::explain
