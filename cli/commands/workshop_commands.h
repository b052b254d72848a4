// The user commands of the program tensorcast-bench (tools/workshop). The help of `tensorcast` also lists
// these commands.
#pragma once

namespace tensorcast::cli {

struct WorkshopCommand {
  const char* name;
  const char* help;
};

inline constexpr WorkshopCommand kMakeModel = {.name = "make-model",
                                               .help = "Write a Llama-shaped bf16 model with random weights"};
inline constexpr WorkshopCommand kDemo = {
    .name = "demo", .help = "Store a model and bring it to other nodes, in a small cluster on this machine"};
inline constexpr WorkshopCommand kOtelSmoke = {
    .name = "otel-smoke",
    .help = "Check that traces, metrics and logs of a small cluster arrive and are complete"};
inline constexpr WorkshopCommand kBench = {
    .name = "bench", .help = "Measure a cluster on this machine beside references of the same machine"};

}  // namespace tensorcast::cli
