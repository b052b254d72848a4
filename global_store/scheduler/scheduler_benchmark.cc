// A choice among many sources: once for each transfer that is asked for.

#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "global_store/scheduler/scheduler.h"

namespace tensorcast::global_store {
namespace {

LaneEnd EndOf(int64_t host) {
  return {.host_id = "host-" + std::to_string(host),
          .handle_socket = "/run/tensorcast/handles.sock",
          .lanes = {"ucx-rma", "ucx"}};
}

void BM_ChooseSource(benchmark::State& state) {
  const SourceQuery query{.receiver = EndOf(-1)};
  std::vector<SourceCandidate> candidates;
  for (int64_t i = 0; i < state.range(0); ++i) {
    candidates.push_back({.replica_id = "replica-" + std::to_string(i),
                          .end = EndOf(i),
                          .active_grants = static_cast<uint32_t>(i % 5)});
  }
  for (auto _ : state) benchmark::DoNotOptimize(ChooseSource(query, candidates));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_ChooseSource)->Arg(1)->Arg(16)->Arg(1000);

}  // namespace
}  // namespace tensorcast::global_store
