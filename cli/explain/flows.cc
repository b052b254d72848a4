#include "cli/explain/flows.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tensorcast::explain {

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
  std::stable_sort(flows.begin(), flows.end(),
                   [](const Flow& a, const Flow& b) { return a.bytes > b.bytes; });
  return flows;
}

}  // namespace tensorcast::explain
