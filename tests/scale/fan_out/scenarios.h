// The fan-outs that the policies are decided by, what is asked of each, and how a run is told.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tests/scale/fan_out/simulator.h"

namespace tensorcast::fan_out {

struct Scenario {
  Plan plan;
  // Max time from a receiver's arrival until it is done, in times of one copy of all images over one link.
  // It holds for all receivers but those on slow links, without the faster lane, and those that crash.
  double max_time = 0;
};

std::vector<std::string> ScenarioNames();
// `nodes` with the source; 264 MB at 400 Mbit/s up to 16 of them, 4 GB at 10 Gbit/s beyond. REQUIRES: the
// name is one of ScenarioNames, and nodes > 1.
Scenario MakeScenario(std::string_view name, int nodes, uint64_t seed);

// Own times of the receivers that count, of each image, in times of one copy, sorted.
std::vector<double> TimesOf(const Plan& plan, const RunResult& result);
// Of each host, in their order: the bytes that reached it from others, in times of all images.
std::vector<double> ImagesOverTheWire(const Plan& plan, const RunResult& result);
// Of each group, in their order: the bytes that reached it from others, in times of all images.
std::vector<double> ImagesIntoGroups(const Plan& plan, const RunResult& result);
// What draining nodes gave, in times of all images.
double ImagesOfDrainingNodes(const Plan& plan, const RunResult& result);
// A row of a Markdown table, and the rows before the first.
std::string TableHead();
std::string TableRow(const Scenario& scenario, const RunResult& result);
// What part of the receivers is done by when, a line for each run: SVG.
std::string Plot(const std::vector<std::pair<std::string, std::vector<double>>>& runs);

}  // namespace tensorcast::fan_out
