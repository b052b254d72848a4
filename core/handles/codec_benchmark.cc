// Frames of the handle socket: what one attach encodes and decodes.

#include <string>

#include "benchmark/benchmark.h"
#include "core/handles/codec.h"

namespace tensorcast {
namespace {

HandlesFrame HandlesOf(int64_t extents) {
  constexpr uint64_t kInASegment = kSegmentBytes / kGranuleBytes / 2;  // every second granule
  HostHandles host{.pool_id = "6f1f2f0e-5d6c-4b7a-8a3e-1d2c3b4a5968", .segments = {}, .extents = {}};
  for (uint64_t i = 0; i < static_cast<uint64_t>(extents); ++i) {
    if (i % kInASegment == 0) {
      host.segments.push_back({static_cast<uint32_t>(i / kInASegment), kSegmentBytes});
    }
    host.extents.push_back({.image_offset = i * kGranuleBytes,
                            .segment = static_cast<uint32_t>(i / kInASegment),
                            .offset = 2 * (i % kInASegment) * kGranuleBytes,
                            .bytes = kGranuleBytes});
  }
  return {{.replica_id = "0b9d3a52-7f0e-4d67-9a4c-6d3f0c1b2a39",
           .artifact_id = "tc2:" + std::string(52, 'a'),
           .image_bytes = static_cast<uint64_t>(extents) << 21,
           .memory = host}};
}

void BM_EncodeHandles(benchmark::State& state) {
  const Frame frame = HandlesOf(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(EncodeFrame(frame));
}
BENCHMARK(BM_EncodeHandles)->Arg(1)->Arg(10'000);

void BM_DecodeHandles(benchmark::State& state) {
  const std::string bytes = *EncodeFrame(HandlesOf(state.range(0)));
  const auto body = std::as_bytes(std::span(bytes)).subspan(kFramePrefixBytes);
  for (auto _ : state) benchmark::DoNotOptimize(DecodeFrame(body));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes.size()));
}
BENCHMARK(BM_DecodeHandles)->Arg(1)->Arg(10'000);

void BM_EncodeAndDecodeClaim(benchmark::State& state) {
  const Frame frame = ClaimFrame{std::string(43, 't')};
  for (auto _ : state) {
    const std::string bytes = *EncodeFrame(frame);
    benchmark::DoNotOptimize(DecodeFrame(std::as_bytes(std::span(bytes)).subspan(kFramePrefixBytes)));
  }
}
BENCHMARK(BM_EncodeAndDecodeClaim);

}  // namespace
}  // namespace tensorcast
