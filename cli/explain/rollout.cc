#include "cli/explain/rollout.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/labels.h"
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

// The first request of any receiver; the bind where there is none.
absl::Time BeginOf(const v1::ExplainRolloutResponse& rollout) {
  absl::Time begin = absl::InfiniteFuture();
  for (const v1::RolloutLevel& level : rollout.levels()) {
    begin = std::min(begin, rpc::FromProto(level.first_begun()));
  }
  return rollout.levels().empty() ? rpc::FromProto(rollout.bound()) : begin;
}

absl::Time EndOf(const v1::ExplainRolloutResponse& rollout) {
  absl::Time end = absl::InfinitePast();
  for (const v1::RolloutLevel& level : rollout.levels()) {
    if (level.has_last_ended()) end = std::max(end, rpc::FromProto(level.last_ended()));
  }
  return end;
}

// All times of a rollout are the global store's clock, so they can be subtracted.
std::string Since(absl::Time begin, const google::protobuf::Timestamp& time) {
  return FormatSeconds(rpc::FromProto(time) - begin);
}

std::string SourceOf(const v1::RolloutHop& hop) {
  return hop.source_name().empty() ? "(no other node)" : hop.source_name();
}

std::string TookText(const v1::RolloutHop& hop) {
  if (!hop.has_ended()) return "under way";
  return absl::StrCat(FormatSeconds(rpc::FromProto(hop.ended()) - rpc::FromProto(hop.begun())),
                      hop.failed() ? " failed" : "");
}

std::string RateText(const v1::RolloutHop& hop) {
  if (!hop.has_ended()) return "-";
  return FormatRate(hop.bytes(), rpc::FromProto(hop.ended()) - rpc::FromProto(hop.begun()));
}

std::string Headline(std::string_view wanted, const v1::ExplainRolloutResponse& rollout) {
  std::string text = absl::StrCat("rollout of ", wanted);
  if (rollout.key_revision() > 0) absl::StrAppend(&text, ", revision ", rollout.key_revision());
  const uint32_t under_way = rollout.receivers() - rollout.ended() - rollout.failed();
  absl::StrAppend(&text, "\n  artifact   ", rollout.artifact_id(), "\n  ",
                  rollout.key_revision() > 0 ? "bound      " : "published  ",
                  absl::FormatTime(absl::RFC3339_sec, rpc::FromProto(rollout.bound()), absl::UTCTimeZone()),
                  "\n  receivers  ", rollout.receivers(), ": ", rollout.ended(), " ended, ", under_way,
                  " under way, ", rollout.failed(), " failed\n");
  if (rollout.ended() > 0) {
    absl::StrAppend(&text, "  took       ", FormatSeconds(EndOf(rollout) - BeginOf(rollout)),
                    " s, from the first request to the last end", under_way > 0 ? " so far" : "", "\n");
  }
  if (!rollout.left_out().empty()) absl::StrAppend(&text, "  not known  ", rollout.left_out(), "\n");
  return text;
}

std::string LevelsText(const v1::ExplainRolloutResponse& rollout) {
  const absl::Time begin = BeginOf(rollout);
  Table table({"level", "receivers", "ended", "first began", "last ended"});
  int number = 0;
  for (const v1::RolloutLevel& level : rollout.levels()) {
    table.Add({absl::StrCat(++number), absl::StrCat(level.receivers()), absl::StrCat(level.ended()),
               Since(begin, level.first_begun()),
               level.has_last_ended() ? Since(begin, level.last_ended()) : "-"});
  }
  return table.ToString();
}

std::string PathText(const v1::ExplainRolloutResponse& rollout) {
  const absl::Time begin = BeginOf(rollout);
  Table table({"from", "to", "lane", "bytes", "began", "seconds", "rate"});
  for (const v1::RolloutHop& hop : rollout.critical_path()) {
    table.Add({SourceOf(hop), hop.node_name(), hop.lane(), FormatBytes(hop.bytes()),
               Since(begin, hop.begun()), TookText(hop), RateText(hop)});
  }
  return table.ToString();
}

std::string CauseText(const SlowCause& cause) {
  if (cause.name.empty()) return "unknown";
  return cause.at.empty() ? cause.name : absl::StrCat(cause.name, " (", cause.at, ")");
}

std::string SlowestText(const v1::ExplainRolloutResponse& rollout, const std::vector<SlowCause>& causes) {
  Table table({"node", "labels", "from", "lane", "bytes", "seconds", "cause"});
  std::string sentences;
  for (int i = 0; i < rollout.slowest_size(); ++i) {
    const v1::RolloutHop& hop = rollout.slowest(i);
    const SlowCause cause =
        static_cast<size_t>(i) < causes.size() ? causes[static_cast<size_t>(i)] : SlowCause();
    table.Add({hop.node_name(), LabelsText({hop.labels().begin(), hop.labels().end()}), SourceOf(hop),
               hop.lane(), FormatBytes(hop.bytes()), TookText(hop), CauseText(cause)});
    const std::string& sentence = cause.problem.empty() ? cause.why : cause.problem;
    if (!sentence.empty()) absl::StrAppend(&sentences, hop.node_name(), ": ", sentence, "\n");
  }
  return absl::StrCat(table.ToString(), sentences);
}

std::string WorstText(const v1::ExplainRolloutResponse& rollout) {
  if (!rollout.has_worst_hop()) {
    return "No single hop delays the rollout: it would not end sooner if the last receivers were as fast as "
           "the median hop.\n";
  }
  const v1::RolloutHop& hop = rollout.worst_hop();
  const absl::Duration costs = rpc::FromProto(rollout.worst_hop_costs());
  return absl::StrCat("The hop with the largest delay: ", SourceOf(hop), " -> ", hop.node_name(),
                      ". If this hop were as fast as the median hop, the rollout would end ",
                      FormatSeconds(costs), " s sooner.\n");
}

}  // namespace

SlowCause CauseOf(const v1::ExplainTransferResponse& response) {
  if (response.hops().empty() || !response.hops(0).has_transfer()) {
    return {.name = "", .at = "", .why = "", .problem = "the node's daemon remembers no such transfer"};
  }
  const absl::StatusOr<TransferReport> report = rpc::FromProto(response.hops(0).transfer());
  if (!report.ok()) {
    return {.name = "", .at = "", .why = "", .problem = std::string(report.status().message())};
  }
  const Route route = RouteOf(response);
  const std::vector<SourceDetails> details = DetailsOf(route, *report);
  const Bound bound = FindVerdict(*report, details);
  const std::string& receiver = response.hops(0).node();
  SlowCause slow{.name = bound.cause.name.empty() ? bound.part : bound.cause.name,
                 .at = receiver,
                 .why = bound.why,
                 .problem = ""};
  // Up the route: a receiver may be as slow as its source was filled.
  const std::optional<BoundingHop> hop = FindBoundingHop(route);
  const bool farther_up = hop.has_value() && hop->to != receiver;
  if (hop.has_value() && (farther_up || bound.cause.name.empty())) {
    slow.name = hop->cause.empty() ? hop->part : hop->cause;
    slow.at = hop->from.empty() ? hop->to : absl::StrCat(hop->from, " -> ", hop->to);
    if (!hop->why.empty()) absl::StrAppend(&slow.why, slow.why.empty() ? "" : " ", hop->why, ".");
    return slow;
  }
  // Else the receiver's own cause counts. If the cause is at one of its sources, `at` names that source, or
  // the link to it where the cause may be at either end.
  const auto source = std::ranges::find(details, bound.cause.grant_id, &SourceDetails::grant_id);
  if (bound.cause.grant_id.empty() || source == details.end()) return slow;
  const bool between = slow.name == "network" || slow.name == "unknown";
  slow.at = between ? absl::StrCat(source->source, " -> ", receiver) : source->source;
  return slow;
}

std::string ExplainRollout(std::string_view wanted, const v1::ExplainRolloutResponse& rollout,
                           const std::vector<SlowCause>& causes) {
  std::string text = Headline(wanted, rollout);
  if (rollout.receivers() == 0) {
    return absl::StrCat(
        text, "\nThe global store remembers no transfer of this artifact between nodes. Nodes that had an ",
        "earlier version may have pulled differences instead (`tensorcast ls --differences`).\n");
  }
  absl::StrAppend(&text, "\nThe tree, by distance from the first copies:\n", LevelsText(rollout));
  if (!rollout.critical_path().empty()) {
    absl::StrAppend(&text, "\nThe path to the receiver that ended last:\n", PathText(rollout));
  }
  return absl::StrCat(text, "\nThe slowest receivers:\n", SlowestText(rollout, causes), "\n",
                      WorstText(rollout));
}

std::string RolloutJson(const v1::ExplainRolloutResponse& rollout, const std::vector<SlowCause>& causes) {
  nlohmann::json told = nlohmann::json::array();
  for (size_t i = 0; i < causes.size(); ++i) {
    told.push_back({{"node", rollout.slowest(static_cast<int>(i)).node_name()},
                    {"cause", causes[i].name},
                    {"at", causes[i].at},
                    {"why", causes[i].why},
                    {"problem", causes[i].problem}});
  }
  return absl::StrFormat("{\"rollout\": %s, \"causes\": %s}\n", cli::ToJson(rollout),
                         told.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace tensorcast::explain
