// Chunk digests and the fused copy beside a plain memcpy, chunk by chunk over mapped memory larger than the
// caches, as an ingest does it. Give --benchmark_repetitions on a busy machine and read the best.

#include <openssl/sha.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "benchmark/benchmark.h"
#include "core/artifact/digest.h"
#include "core/artifact/layout.h"

namespace tensorcast {
namespace {

constexpr size_t kImageBytes = size_t{512} << 20;

std::span<std::byte> SharedMapping(int fill) {
  void* base = mmap(nullptr, kImageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return {};
  std::memset(base, fill, kImageBytes);
  return {static_cast<std::byte*>(base), kImageBytes};
}

std::span<std::byte> Source() {
  static const std::span<std::byte> source = SharedMapping(1);
  return source;
}

std::span<std::byte> Destination() {
  static const std::span<std::byte> destination = SharedMapping(2);
  return destination;
}

// Calls work(destination, source) for each chunk of the image.
template <typename Work>
void ForEachChunk(benchmark::State& state, Work work) {
  if (Source().empty() || Destination().empty()) {
    state.SkipWithError("the host has not enough memory");
    return;
  }
  for (auto _ : state) {
    for (size_t offset = 0; offset < kImageBytes; offset += kMaxChunkBytes) {
      const size_t bytes = std::min<size_t>(kMaxChunkBytes, kImageBytes - offset);
      work(Destination().data() + offset, std::span<const std::byte>(Source()).subspan(offset, bytes));
    }
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * kImageBytes);
}

void BM_Memcpy(benchmark::State& state) {
  ForEachChunk(state, [](std::byte* destination, std::span<const std::byte> source) {
    std::memcpy(destination, source.data(), source.size());
    benchmark::ClobberMemory();
  });
}
BENCHMARK(BM_Memcpy)->UseRealTime();

void BM_StreamingCopy(benchmark::State& state) { ForEachChunk(state, StreamingCopy); }
BENCHMARK(BM_StreamingCopy)->UseRealTime();

void BM_Digest(benchmark::State& state) {
  ForEachChunk(state, [](std::byte*, std::span<const std::byte> source) {
    benchmark::DoNotOptimize(ComputeDigest(source));
  });
}
BENCHMARK(BM_Digest)->UseRealTime();

void BM_CopyThenDigest(benchmark::State& state) {
  ForEachChunk(state, [](std::byte* destination, std::span<const std::byte> source) {
    std::memcpy(destination, source.data(), source.size());
    benchmark::DoNotOptimize(ComputeDigest(source));
  });
}
BENCHMARK(BM_CopyThenDigest)->UseRealTime();

void BM_FusedCopyAndDigest(benchmark::State& state) {
  ForEachChunk(state, [](std::byte* destination, std::span<const std::byte> source) {
    DigestBuilder builder;
    builder.UpdateAndCopy(destination, source);
    benchmark::DoNotOptimize(builder.Finish());
  });
}
BENCHMARK(BM_FusedCopyAndDigest)->UseRealTime();

void BM_Blake3(benchmark::State& state) {
  ForEachChunk(state, [](std::byte*, std::span<const std::byte> source) {
    benchmark::DoNotOptimize(ComputeBlake3(source));
  });
}
BENCHMARK(BM_Blake3)->UseRealTime();

void BM_BothDigests(benchmark::State& state) {
  ForEachChunk(state, [](std::byte*, std::span<const std::byte> source) {
    DigestBuilder builder(/*with_blake3=*/true);
    builder.Update(source);
    benchmark::DoNotOptimize(builder.FinishChunk());
  });
}
BENCHMARK(BM_BothDigests)->UseRealTime();

void BM_FusedCopyAndBothDigests(benchmark::State& state) {
  ForEachChunk(state, [](std::byte* destination, std::span<const std::byte> source) {
    DigestBuilder builder(/*with_blake3=*/true);
    builder.UpdateAndCopy(destination, source);
    benchmark::DoNotOptimize(builder.FinishChunk());
  });
}
BENCHMARK(BM_FusedCopyAndBothDigests)->UseRealTime();

// What a source costs that digests only XXH3 on the way.
void BM_FusedCopyAndDigestThenBlake3(benchmark::State& state) {
  ForEachChunk(state, [](std::byte* destination, std::span<const std::byte> source) {
    DigestBuilder builder;
    builder.UpdateAndCopy(destination, source);
    benchmark::DoNotOptimize(builder.Finish());
    benchmark::DoNotOptimize(ComputeBlake3({destination, source.size()}));
  });
}
BENCHMARK(BM_FusedCopyAndDigestThenBlake3)->UseRealTime();

// For comparison: what artifact ids are made with.
void BM_Sha256(benchmark::State& state) {
  ForEachChunk(state, [](std::byte*, std::span<const std::byte> source) {
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256(reinterpret_cast<const unsigned char*>(source.data()), source.size(), digest);
    benchmark::DoNotOptimize(digest);
  });
}
BENCHMARK(BM_Sha256)->UseRealTime();

}  // namespace
}  // namespace tensorcast
