// The commands for users that the program tensorcast-bench runs (tools/workshop), since the program
// `tensorcast` does not link the clusters and models that these commands need. Both programs list these
// names.
#pragma once

namespace tensorcast::cli {

struct WorkshopCommand {
  const char* name;
  const char* help;
};

inline constexpr WorkshopCommand kMakeModel = {.name = "make-model",
                                               .help = "Write a Llama-shaped bf16 model with random weights"};
inline constexpr WorkshopCommand kDemo = {
    .name = "demo", .help = "Run the main job on a cluster of real processes on this machine"};
inline constexpr WorkshopCommand kOtelSmoke = {
    .name = "otel-smoke",
    .help = "Prove that traces, metrics and logs of a cluster of real processes arrive and fit together"};
inline constexpr WorkshopCommand kBench = {
    .name = "bench", .help = "Measure a cluster on this machine beside what the machine can do"};

}  // namespace tensorcast::cli
