// fan_out_simulator [--nodes N,...] [--scenario NAME,...] [--without RULE] [--seed N] [--plot FILE]: prints a
// table. See README.md.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>

#include "global_store/scheduler/source_rules.h"
#include "tests/scale/fan_out/scenarios.h"

int main(int argc, char** argv) {
  namespace fan_out = tensorcast::fan_out;
  std::vector<int> sizes = {8, 16, 100, 1000, 10'000};
  std::vector<std::string> names = fan_out::ScenarioNames();
  uint64_t seed = 1;
  std::vector<std::string> rules;
  for (const auto& rule : tensorcast::global_store::SourceRules()) rules.emplace_back(rule.name);
  std::string without;
  std::string plot;
  CLI::App app(
      "One image from one node to many, with the real directory, scheduler and chunk picker, simulated");
  app.add_option("--nodes", sizes, "How many nodes, the source among them")
      ->delimiter(',')
      ->check(CLI::Range(2, 100'000));
  app.add_option("--scenario", names, "Which fan-outs")
      ->delimiter(',')
      ->check(CLI::IsMember(fan_out::ScenarioNames()));
  app.add_option("--without", without, "A rule of the scheduler to leave out")->check(CLI::IsMember(rules));
  app.add_option("--seed", seed, "Of all that is random");
  app.add_option("--plot", plot, "A file for a plot of when the receivers are done (SVG)");
  CLI11_PARSE(app, argc, argv);

  std::vector<std::pair<std::string, std::vector<double>>> runs;
  std::fputs(fan_out::TableHead().c_str(), stdout);
  for (const int nodes : sizes) {
    for (const std::string& name : names) {
      fan_out::Scenario scenario = fan_out::MakeScenario(name, nodes, seed);
      scenario.plan.without = without;
      const fan_out::RunResult result = fan_out::Simulate(scenario.plan);
      std::fputs(fan_out::TableRow(scenario, result).c_str(), stdout);
      std::fflush(stdout);
      runs.emplace_back(scenario.plan.name, fan_out::TimesOf(scenario.plan, result));
    }
  }
  if (plot.empty()) return 0;
  std::ofstream file(plot);
  file << fan_out::Plot(runs);
  file.close();
  if (file) return 0;
  std::fprintf(stderr, "fan_out_simulator: cannot write the plot to %s: is the folder there, and not full?\n",
               plot.c_str());
  return 1;
}
