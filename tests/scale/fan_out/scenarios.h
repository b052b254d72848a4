// The fan-outs by which the policies are judged, the requirement for each, and how a run is shown.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tests/scale/fan_out/simulator.h"

namespace tensorcast::fan_out {

struct Scenario {
  Plan plan;
  // Max time from a receiver's arrival until it is done, in multiples of one copy of all images over one
  // link. It applies to all receivers except those on slow links, without the faster lane, or that crash.
  double max_time = 0;
};

std::vector<std::string> ScenarioNames();
// `nodes` includes the source; 264 MB at 400 Mbit/s for up to 16 nodes, 4 GB at 10 Gbit/s for more. REQUIRES:
// the name is one of ScenarioNames, and nodes > 1.
Scenario MakeScenario(std::string_view name, int nodes, uint64_t seed);

// The times of the receivers to which max_time applies, for each image, in multiples of one copy, sorted.
std::vector<double> TimesOf(const Plan& plan, const RunResult& result);
// For each host, in order: the bytes that it received from other hosts, in multiples of all images.
std::vector<double> ImagesOverTheWire(const Plan& plan, const RunResult& result);
// For each group, in order: the bytes that it received from other groups, in multiples of all images.
std::vector<double> ImagesIntoGroups(const Plan& plan, const RunResult& result);
// The bytes that draining nodes gave, in multiples of all images.
double ImagesOfDrainingNodes(const Plan& plan, const RunResult& result);
// The head of a Markdown table, and one row.
std::string TableHead();
std::string TableRow(const Scenario& scenario, const RunResult& result);
// The share of the receivers that are done over time, one line per run: SVG.
std::string Plot(const std::vector<std::pair<std::string, std::vector<double>>>& runs);

}  // namespace tensorcast::fan_out
