// Manifests of up to 100,000 tensors: made, decoded (with every check and the artifact's id), looked up.

#include <string>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "core/artifact/manifest.h"
#include "core/artifact/test_util.h"

namespace tensorcast {
namespace {

ImageLayout LayoutOf(int64_t tensors) {
  ImageLayout layout;
  for (int64_t i = 0; i < tensors; ++i) {
    layout.tensors.push_back({.name = "model.layers." + std::to_string(i) + ".self_attn.q_proj.weight",
                              .dtype = DType::kBF16,
                              .shape = {64, 64},
                              .nbytes = 64 * 64 * 2});
  }
  if (!AssignOffsets(layout).ok()) layout.tensors.clear();
  return layout;
}

std::shared_ptr<const Manifest> ManifestOf(int64_t tensors) {
  ImageLayout layout = LayoutOf(tensors);
  std::vector<ChunkDigests> digests = testing::NoDigests(layout);
  return *Manifest::Create(std::move(layout), std::move(digests), {{"format", "pt"}});
}

void BM_Create(benchmark::State& state) {
  const ImageLayout layout = LayoutOf(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(Manifest::Create(layout, testing::NoDigests(layout), {}));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_Create)->Arg(100)->Arg(100'000)->Unit(benchmark::kMicrosecond);

void BM_Decode(benchmark::State& state) {
  const auto manifest = ManifestOf(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(Manifest::Decode(manifest->bytes()));
  state.SetItemsProcessed(state.iterations() * state.range(0));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(manifest->bytes().size()));
}
BENCHMARK(BM_Decode)->Arg(100)->Arg(100'000)->Unit(benchmark::kMicrosecond);

void BM_Find(benchmark::State& state) {
  const auto manifest = ManifestOf(state.range(0));
  const std::vector<Tensor>& tensors = manifest->layout().tensors;
  size_t next = 0;
  for (auto _ : state) {
    next = (next + 7919) % tensors.size();
    benchmark::DoNotOptimize(manifest->Find(tensors[next].name));
  }
}
BENCHMARK(BM_Find)->Arg(100)->Arg(100'000);

}  // namespace
}  // namespace tensorcast
