// Reads a file through a source as an ingest does: some threads, 16 MiB chunks, into one buffer.
//
// TC_BENCHMARK_FILE names a file to read (cold each time); otherwise 1 GiB is written to the working folder.
#include <cstdlib>
#include <cstring>
#include <thread>

#include "absl/log/check.h"
#include "benchmark/benchmark.h"
#include "core/disk/test_util.h"
#include "core/source/object_source.h"

namespace tensorcast {
namespace {

constexpr uint64_t kChunk = uint64_t{16} << 20;
constexpr uint64_t kFileBytes = uint64_t{1} << 30;

struct Subject {
  Subject() {
    if (const char* path = std::getenv("TC_BENCHMARK_FILE"); path != nullptr) {
      file = IdentityOf(path);
      return;
    }
    WriteFile(folder.File("f"), Pattern(kFileBytes, 1));
    file = IdentityOf(folder.File("f"));
  }
  TestFolder folder;
  ObjectIdentity file;
};

// The pool that an ingest reads into is pre-faulted as well.
const AlignedMemory* TouchedMemory(uint64_t bytes) {
  const auto* memory = new AlignedMemory(bytes);
  std::memset(memory->buffer.get(), 1, bytes);
  return memory;
}

void ReadAll(const Subject& subject, uint64_t skip, int threads, uint64_t read_bytes,
             const AlignedMemory& memory) {
  const uint64_t image_bytes = subject.file.bytes - skip;
  auto source =
      MakeObjectSource(Opened({subject.file}, {.max_concurrency = threads, .read_bytes = read_bytes}),
                       {{0, skip, 0, image_bytes}}, image_bytes);
  CHECK_OK(source.status());
  const RequestContext context = RequestContext::Background();
  std::atomic<uint64_t> next = 0;
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back([&] {
      for (uint64_t at = next.fetch_add(kChunk); at < image_bytes; at = next.fetch_add(kChunk)) {
        const ByteRange range{at, std::min(kChunk, image_bytes - at)};
        const HostSpan destination = memory.span(at, range.bytes);
        CHECK_OK((*source)->Fetch(context, {0, range, {&destination, 1}}).status());
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
}

// Arguments: bytes to skip (unaligned: through buffers), threads, KiB of a read, warm.
void BM_ReadFile(benchmark::State& state) {
  static const Subject* const subject = new Subject();
  static const AlignedMemory* const memory = TouchedMemory(subject->file.bytes);
  const bool warm = state.range(3) != 0;
  if (warm) ReadIntoPageCache(subject->file.uri);
  for (auto _ : state) {
    if (!warm) {
      state.PauseTiming();
      DropFromPageCache(subject->file.uri);
      state.ResumeTiming();
    }
    ReadAll(*subject, state.range(0), static_cast<int>(state.range(1)), state.range(2) << 10, *memory);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * (subject->file.bytes - state.range(0))));
}
BENCHMARK(BM_ReadFile)
    ->ArgNames({"skip", "threads", "read_kib", "warm"})
    ->Args({0, 1, 4096, 0})
    ->Args({0, 2, 4096, 0})
    ->Args({0, 4, 4096, 0})
    ->Args({0, 4, 1024, 0})
    ->Args({0, 8, 1024, 0})
    ->Args({0, 8, 4096, 0})
    ->Args({0, 4, 16384, 0})
    ->Args({104, 4, 4096, 0})
    ->Args({104, 4, 1024, 0})
    ->Args({0, 4, 4096, 1})
    ->Args({104, 4, 4096, 1})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tensorcast
