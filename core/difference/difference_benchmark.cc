// Encoding, and rebuilding a target, beside the copy and the digest that a transfer costs anyway, chunk by
// chunk over mapped memory larger than the caches; and how large differences are. On a busy machine, give
// --benchmark_repetitions with --benchmark_enable_random_interleaving and compare the medians or the best.
#include <sys/mman.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "absl/log/check.h"
#include "benchmark/benchmark.h"
#include "core/artifact/digest.h"
#include "core/difference/change_lists.h"
#include "core/difference/changed_marks.h"
#include "core/difference/chunk_encoder.h"
#include "core/difference/chunk_rebuilder.h"
#include "core/difference/test_util.h"

namespace tensorcast {
namespace {

constexpr size_t kImageBytes = size_t{256} << 20;
constexpr size_t kFilledBytes = size_t{16} << 20;  // repeated
constexpr double kChanged = 0.014;
constexpr size_t kVersions = 8;

std::span<std::byte> Mapping() {
  void* const base = mmap(nullptr, kImageBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(base != MAP_FAILED) << "the host has not enough memory";
  return {static_cast<std::byte*>(base), kImageBytes};
}

DifferenceGeometry Geometry() {
  static const ImageLayout layout =
      testing::LayoutOfTensors({{DType::kBF16, kImageBytes / 2}}, kMaxChunkBytes);
  return GeometryOf(layout);
}

// A base, its next version, and the difference between them.
struct Versions {
  std::span<std::byte> base = Mapping();
  std::span<std::byte> target = Mapping();
  std::span<std::byte> destination = Mapping();
  std::vector<std::byte> image;
  std::optional<DifferenceDecoder> decoder;

  Versions() {
    testing::FillWeights(base.first(kFilledBytes), 1);
    for (size_t at = kFilledBytes; at < kImageBytes; at += kFilledBytes) {
      std::memcpy(base.data() + at, base.data(), kFilledBytes);
    }
    std::memcpy(target.data(), base.data(), kImageBytes);
    testing::StepByUlps(target, kChanged, 2);
    std::memset(destination.data(), 1, kImageBytes);
    const auto encoded = testing::EncodeImage(Geometry(), base, target);
    CHECK(encoded.has_value());
    image = testing::ImageOf(*encoded);
    std::span<std::byte> piece = image;
    decoder = DifferenceDecoder::Open(encoded->layout, {&piece, 1}, Geometry()).value();
  }
};

Versions& TwoVersions() {
  static Versions versions;
  return versions;
}

// Calls work(chunk, base, target, destination) for each chunk of the image.
template <typename Work>
void ForEachChunk(benchmark::State& state, Work work) {
  Versions& versions = TwoVersions();
  const DifferenceGeometry geometry = Geometry();
  for (auto _ : state) {
    for (uint32_t chunk = 0; chunk < geometry.chunk_count(); ++chunk) {
      const ByteRange range = geometry.chunk(chunk);
      work(chunk, std::span<const std::byte>(versions.base).subspan(range.offset, range.bytes),
           std::span<const std::byte>(versions.target).subspan(range.offset, range.bytes),
           versions.destination.subspan(range.offset, range.bytes));
    }
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * kImageBytes);
}

using Bytes = std::span<const std::byte>;

void BM_FusedCopyAndDigest(benchmark::State& state) {
  const bool with_blake3 = state.range(0) != 0;
  ForEachChunk(state, [&](uint32_t, Bytes base, Bytes, std::span<std::byte> destination) {
    DigestBuilder digest(with_blake3);
    digest.UpdateAndCopy(destination.data(), base);
    benchmark::DoNotOptimize(digest.FinishChunk());
  });
}
BENCHMARK(BM_FusedCopyAndDigest)->ArgName("blake3")->Arg(0)->Arg(1)->UseRealTime();

// The same by the way that a rebuild takes, over a buffer in the cache: which of the two is faster depends on
// the processor.
void BM_SteppedCopyAndDigest(benchmark::State& state) {
  constexpr size_t kStepBytes = size_t{16} << 10;
  alignas(64) std::array<std::byte, kStepBytes> buffer;
  ForEachChunk(state, [&](uint32_t, Bytes base, Bytes, std::span<std::byte> destination) {
    DigestBuilder digest;
    for (size_t at = 0; at < base.size(); at += kStepBytes) {
      std::memcpy(buffer.data(), &base[at], kStepBytes);
      digest.Update(buffer);
      StreamingCopy(&destination[at], buffer);
    }
    benchmark::DoNotOptimize(digest.Finish());
  });
}
BENCHMARK(BM_SteppedCopyAndDigest)->UseRealTime();

void BM_RebuildAndDigest(benchmark::State& state) {
  const bool with_blake3 = state.range(0) != 0;
  ChunkRebuilder rebuilder;
  const DifferenceDecoder* const decoder = &*TwoVersions().decoder;
  ForEachChunk(state, [&](uint32_t chunk, Bytes base, Bytes, std::span<std::byte> destination) {
    DigestBuilder digest(with_blake3);
    CHECK_OK(rebuilder.Rebuild({&decoder, 1}, chunk, base, destination, &digest));
    benchmark::DoNotOptimize(digest.FinishChunk());
  });
  CHECK(std::ranges::equal(TwoVersions().destination, TwoVersions().target));
}
BENCHMARK(BM_RebuildAndDigest)->ArgName("blake3")->Arg(0)->Arg(1)->UseRealTime();

void BM_Rebuild(benchmark::State& state) {
  ChunkRebuilder rebuilder;
  const DifferenceDecoder* const decoder = &*TwoVersions().decoder;
  ForEachChunk(state, [&](uint32_t chunk, Bytes base, Bytes, std::span<std::byte> destination) {
    CHECK_OK(rebuilder.Rebuild({&decoder, 1}, chunk, base, destination, nullptr));
  });
}
BENCHMARK(BM_Rebuild)->UseRealTime();

// Eight differences in one pass. They are the same one eight times, which costs what eight would.
void BM_RebuildFoldedAndDigest(benchmark::State& state) {
  ChunkRebuilder rebuilder;
  const std::vector<const DifferenceDecoder*> path(kVersions, &*TwoVersions().decoder);
  ForEachChunk(state, [&](uint32_t chunk, Bytes base, Bytes, std::span<std::byte> destination) {
    DigestBuilder digest;
    CHECK_OK(rebuilder.Rebuild(path, chunk, base, destination, &digest));
    benchmark::DoNotOptimize(digest.Finish());
  });
}
BENCHMARK(BM_RebuildFoldedAndDigest)->UseRealTime();

void BM_VisitChanges(benchmark::State& state) {
  ChunkRebuilder rebuilder;
  const DifferenceDecoder* const decoder = &*TwoVersions().decoder;
  ForEachChunk(state, [&](uint32_t chunk, Bytes, Bytes, std::span<std::byte>) {
    uint64_t changed = 0;
    CHECK_OK(rebuilder.VisitChanges(
        {&decoder, 1}, chunk, [&](const ChangedElements& elements) { changed += elements.offsets.size(); }));
    benchmark::DoNotOptimize(changed);
  });
}
BENCHMARK(BM_VisitChanges)->UseRealTime();

// The host's part of a rebuild on a GPU.
void BM_ListChanges(benchmark::State& state) {
  ChangeLists lists;
  const DifferenceDecoder* const decoder = &*TwoVersions().decoder;
  std::vector<std::byte> room(Geometry().chunk_bytes / 4);
  ForEachChunk(state, [&](uint32_t chunk, Bytes, Bytes, std::span<std::byte>) {
    CHECK_OK(lists.Begin({&decoder, 1}, chunk));
    const auto part = lists.Next(room);
    CHECK_OK(part.status());
    CHECK(lists.done());
    benchmark::DoNotOptimize(part->bytes);
  });
}
BENCHMARK(BM_ListChanges)->UseRealTime();

// The bounds of a write in place: 0, a copy of all; 1, the changed elements alone, from the target, where
// each is known beforehand; 2, the same from values that lie side by side.
void BM_WriteKnownElements(benchmark::State& state) {
  constexpr size_t kAhead = 48;
  struct Known {
    std::vector<uint32_t> elements;
    std::vector<uint16_t> values;
  };
  static const std::vector<Known> known = [] {
    std::vector<Known> made;
    const Versions& versions = TwoVersions();
    const auto* const target = reinterpret_cast<const uint16_t*>(versions.target.data());
    const DifferenceDecoder* const decoder = &*versions.decoder;
    ChunkRebuilder rebuilder;
    for (uint32_t chunk = 0; chunk < Geometry().chunk_count(); ++chunk) {
      Known& one = made.emplace_back();
      const uint64_t begin = Geometry().chunk(chunk).offset;
      CHECK_OK(rebuilder.VisitChanges({&decoder, 1}, chunk, [&](const ChangedElements& changed) {
        for (const uint32_t offset : changed.offsets) {
          one.elements.push_back(offset / 2);
          one.values.push_back(target[(begin + offset) / 2]);
        }
      }));
    }
    return made;
  }();
  ForEachChunk(state, [&](uint32_t chunk, Bytes, Bytes target, std::span<std::byte> destination) {
    if (state.range(0) == 0) {
      std::memcpy(destination.data(), target.data(), target.size());
      return;
    }
    const bool side_by_side = state.range(0) == 2;
    const auto& [elements, values] = known[chunk];
    const auto* const from = reinterpret_cast<const uint16_t*>(target.data());
    auto* const to = reinterpret_cast<uint16_t*>(destination.data());
    for (size_t i = 0; i < elements.size(); ++i) {
      if (i + kAhead < elements.size()) {
        if (!side_by_side) __builtin_prefetch(from + elements[i + kAhead]);
        __builtin_prefetch(to + elements[i + kAhead], 1);
      }
      to[elements[i]] = side_by_side ? values[i] : from[elements[i]];
    }
    benchmark::ClobberMemory();
  });
}
BENCHMARK(BM_WriteKnownElements)->ArgName("way")->DenseRange(0, 2)->UseRealTime();

void BM_Encode(benchmark::State& state) {
  std::optional<DifferenceEncoder> encoder;
  std::optional<ChunkEncoder> chunks;
  ForEachChunk(state, [&](uint32_t chunk, Bytes base, Bytes target, std::span<std::byte>) {
    if (chunk == 0) {
      encoder.emplace(Geometry());
      chunks.emplace(*encoder);
    }
    chunks->Encode(chunk, base, target);
  });
}
BENCHMARK(BM_Encode)->UseRealTime();

// What a put without and one with a base cost besides the transport.
void BM_Put(benchmark::State& state) {
  const bool with_base = state.range(0) != 0;
  std::optional<DifferenceEncoder> encoder;
  std::optional<ChunkEncoder> chunks;
  ForEachChunk(state, [&](uint32_t chunk, Bytes base, Bytes target, std::span<std::byte> destination) {
    if (chunk == 0) {
      encoder.emplace(Geometry());
      chunks.emplace(*encoder);
    }
    constexpr size_t kStepBytes = size_t{64} << 10;
    DigestBuilder digest(/*with_blake3=*/true);
    if (with_base) chunks->Start(chunk);
    for (size_t at = 0; at < target.size(); at += kStepBytes) {
      const Bytes step = target.subspan(at, std::min(kStepBytes, target.size() - at));
      digest.UpdateAndCopy(destination.data() + at, step);
      if (with_base) chunks->Append(base.subspan(at, step.size()), step);
    }
    if (with_base) chunks->Finish();
    benchmark::DoNotOptimize(digest.FinishChunk());
  });
}
BENCHMARK(BM_Put)->ArgName("base")->Arg(0)->Arg(1)->UseRealTime();

void BM_MarkChanged(benchmark::State& state) {
  const auto width = static_cast<uint32_t>(state.range(0));
  const bool portable = state.range(1) != 0;
  std::vector<uint64_t> marks(4096 / kMarksPerWord);
  ForEachChunk(state, [&](uint32_t, Bytes base, Bytes target, std::span<std::byte>) {
    for (size_t at = 0; at < base.size(); at += 4096) {
      (portable ? MarkChangedPortable : MarkChanged)(width, &base[at], &target[at], 4096, marks.data());
      benchmark::DoNotOptimize(marks.data());
    }
  });
}
BENCHMARK(BM_MarkChanged)
    ->ArgNames({"width", "portable"})
    ->Args({2, 0})
    ->Args({2, 1})
    ->Args({4, 0})
    ->UseRealTime();

// Not of speed: the counters say how large a difference is, in percent of the image and as parts of the
// entropy bound and of what others send. `per_mille` elements change by steps of some ulps; 0: master weights
// move.
void BM_Size(benchmark::State& state) {
  const auto per_mille = static_cast<double>(state.range(0));
  const DifferenceGeometry geometry =
      GeometryOf(testing::LayoutOfTensors({{DType::kBF16, kFilledBytes / 2}}, kMaxChunkBytes));
  const Bytes base = Bytes(TwoVersions().base).first(kFilledBytes);
  std::vector<std::byte> target(base.begin(), base.end());
  if (per_mille > 0) {
    testing::StepByUlps(target, per_mille / 1000, 3);
  } else {
    testing::StepMasterWeights(target, 1e-6f, 3);
  }
  std::optional<EncodedDifference> encoded;
  for (auto _ : state) encoded = testing::EncodeImage(geometry, base, target);
  CHECK(encoded.has_value());
  std::vector<std::byte> others(kFilledBytes);
  for (size_t i = 0; i < kFilledBytes; ++i) others[i] = base[i] ^ target[i];
  std::vector<std::byte> compressed(ZSTD_compressBound(kFilledBytes));
  const size_t xor_bytes = ZSTD_compress(compressed.data(), compressed.size(), others.data(), others.size(),
                                         /*compressionLevel=*/1);
  const auto bytes = static_cast<double>(encoded->index.size() + encoded->records_bytes);
  const testing::StepStatistics steps = testing::CompareSteps(base, target);
  state.counters["changed_percent"] = steps.changed_part() * 100;
  state.counters["size_percent"] = bytes / kFilledBytes * 100;
  state.counters["bound_percent"] = steps.bound_bytes / kFilledBytes * 100;
  state.counters["of_bound"] = bytes / steps.bound_bytes;
  state.counters["xor_zstd_percent"] = static_cast<double>(xor_bytes) / kFilledBytes * 100;
  state.counters["of_xor_zstd"] = bytes / static_cast<double>(xor_bytes);
}
BENCHMARK(BM_Size)->ArgName("per_mille")->Arg(14)->Arg(31)->Arg(90)->Arg(500)->Arg(0)->Iterations(1);

}  // namespace
}  // namespace tensorcast
