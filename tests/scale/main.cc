// scale [--artifacts N] [--nodes N] [--steps N]: prints how the global store grows. See README.md.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "absl/log/globals.h"
#include "tests/scale/scale.h"
#include "tools/workshop/cluster/local_cluster.h"

int main(int argc, char** argv) {
  tensorcast::scale::Options options;
  CLI::App app("How the global store grows with artifacts, on simulated nodes");
  app.add_option("--artifacts", options.artifacts, "How many artifacts, each with a key and two replicas")
      ->capture_default_str();
  app.add_option("--nodes", options.nodes, "How many simulated nodes")->capture_default_str();
  app.add_option("--steps", options.steps, "Measure this often on the way")->capture_default_str();
  app.add_option("--directory", options.directory, "Where the database goes; a temporary folder by default");
  CLI11_PARSE(app, argc, argv);

  absl::SetMinLogLevel(absl::LogSeverityAtLeast::kWarning);
  absl::SetStderrThreshold(absl::LogSeverityAtLeast::kWarning);
  const auto temporary = tensorcast::TemporaryDirectory::Create("tensorcast-scale");
  if (options.directory.empty() && temporary.ok()) options.directory = (*temporary)->path();
  const auto steps = tensorcast::scale::RunFleet(options);
  if (!steps.ok()) {
    std::fprintf(stderr, "scale: %s\n", steps.status().ToString().c_str());
    return 1;
  }
  std::fputs(tensorcast::scale::Table(*steps).c_str(), stdout);
}
