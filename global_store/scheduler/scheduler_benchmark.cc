// The cost of one choice among many sources, which each request for grants makes.

#include <deque>
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

void BM_ChooseSources(benchmark::State& state) {
  const LaneEnd receiver = EndOf(-1);
  const SourceQuery query{.receiver = &receiver, .wanted = 6};
  std::deque<std::string> ids;
  std::deque<LaneEnd> ends;
  std::vector<SourceCandidate> candidates;
  for (int64_t i = 0; i < state.range(0); ++i) {
    ids.push_back("replica-" + std::to_string(i));
    ends.push_back(EndOf(i));
    candidates.push_back(
        {.replica_id = ids.back(), .end = &ends.back(), .active_grants = static_cast<uint32_t>(i % 5)});
  }
  for (auto _ : state) benchmark::DoNotOptimize(ChooseSources(query, candidates));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_ChooseSources)->Arg(1)->Arg(16)->Arg(64);

}  // namespace
}  // namespace tensorcast::global_store
