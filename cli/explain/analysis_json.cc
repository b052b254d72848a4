#include "cli/explain/analysis_json.h"

#include <nlohmann/json.hpp>

#include "cli/explain/analysis.h"

namespace tensorcast::explain {

std::string AnalysisJson(const TransferReport& report, const std::vector<SourceDetails>& sources,
                         const Route& route) {
  const TransferParts parts = PartsOf(report);
  const Bound bound = FindVerdict(report, sources);
  nlohmann::json json;
  json["bound"] = {{"part", bound.part}, {"why", bound.why}};
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
    json["bounding_hop"] = {{"from", hop->from},  {"to", hop->to},   {"lane", hop->lane},
                            {"part", hop->part},  {"why", hop->why}, {"silent", hop->silent},
                            {"steps", hop->steps}};
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
