// What the pools cost: granules taken and given back, and the spans of a chunk of a scattered allocation.

#include <memory>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "core/memory/host_pool.h"

namespace tensorcast {
namespace {

constexpr uint64_t kChunkBytes = uint64_t{16} << 20;

std::unique_ptr<HostPool> MakePool(benchmark::State& state, uint64_t granules) {
  // No page is ever touched, so that the size costs nothing.
  auto pool =
      HostPool::Create({.bytes = granules * kGranuleBytes, .use_huge_pages = false, .prefault_threads = 0});
  if (!pool.ok()) {
    state.SkipWithError(std::string(pool.status().message()).c_str());
    return nullptr;
  }
  return *std::move(pool);
}

// Takes every second granule, so that nothing larger than one is contiguous in what is left.
std::vector<HostAllocation> Fragment(HostPool& pool, uint64_t granules) {
  std::vector<HostAllocation> all, kept;
  for (uint64_t i = 0; i < granules; ++i) all.push_back(*pool.Allocate(kGranuleBytes));
  for (uint64_t i = 0; i < granules; i += 2) kept.push_back(std::move(all[i]));
  return kept;
}

void BM_AllocateAndFree(benchmark::State& state) {
  const auto pool = MakePool(state, 4096);
  if (pool == nullptr) return;
  for (auto _ : state) {
    benchmark::DoNotOptimize(pool->Allocate(static_cast<uint64_t>(state.range(0)) * kGranuleBytes));
  }
}
BENCHMARK(BM_AllocateAndFree)->Arg(1)->Arg(512);

// From a pool of that many granules, half of which are held in the worst pattern.
void BM_AllocateFromAFragmentedPool(benchmark::State& state) {
  const auto granules = static_cast<uint64_t>(state.range(0));
  const auto pool = MakePool(state, granules);
  if (pool == nullptr) return;
  const std::vector<HostAllocation> held = Fragment(*pool, granules);
  for (auto _ : state) benchmark::DoNotOptimize(pool->Allocate(granules / 4 * kGranuleBytes));
}
BENCHMARK(BM_AllocateFromAFragmentedPool)->Arg(256)->Arg(4096);

void BM_SpansOfAChunk(benchmark::State& state) {
  constexpr uint64_t kGranules = 1024;
  const auto pool = MakePool(state, kGranules);
  if (pool == nullptr) return;
  const std::vector<HostAllocation> held = Fragment(*pool, kGranules);
  const HostAllocation scattered = *pool->Allocate(kGranules / 2 * kGranuleBytes);
  const uint64_t chunks = scattered.bytes() / kChunkBytes;
  uint64_t chunk = 0;
  for (auto _ : state) benchmark::DoNotOptimize(scattered.Spans(chunk++ % chunks * kChunkBytes, kChunkBytes));
}
BENCHMARK(BM_SpansOfAChunk);

}  // namespace
}  // namespace tensorcast
