#include "core/source/digest_chunks.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "core/source/bounce_buffers.h"

namespace tensorcast {
namespace {

constexpr uint64_t kDigestStepBytes = uint64_t{4} << 20;  // a chunk may be larger than memory is to spare

absl::StatusOr<ChunkDigests> DigestOne(const RequestContext& context, ChunkSource& source, uint32_t chunk,
                                       const ByteRange& range, HostSpan buffer, bool with_blake3) {
  DigestBuilder digest(with_blake3);
  for (uint64_t done = 0; done < range.bytes;) {
    // Steps of a chunk, so that a thread holds one small buffer however large chunks are.
    const HostSpan step = buffer.first(std::min<uint64_t>(buffer.size(), range.bytes - done));
    TC_RETURN_IF_ERROR(
        source.Fetch(context, {chunk, {range.offset + done, step.size()}, {&step, 1}}).status());
    digest.Update(step);
    done += step.size();
  }
  return digest.FinishChunk();
}

}  // namespace

// The caller's thread is one of the threads, so at least one works where no helper can be started.
absl::Status DigestChunks(const RequestContext& context, ChunkSource& source, const ImageLayout& layout,
                          bool with_blake3,
                          absl::FunctionRef<bool(uint32_t chunk, ChunkDigests digests)> take) {
  const uint32_t count = layout.chunk_count();
  std::atomic<uint32_t> next = 0;
  std::atomic<bool> ended = false;
  absl::Mutex mutex;
  absl::Status failed;
  const auto work = [&] {
    const AlignedBuffer buffer = AllocateAligned(kDigestStepBytes);
    // Each thread takes the next chunk, so that one slow read holds up nothing else.
    for (uint32_t chunk; !ended && (chunk = next.fetch_add(1)) < count;) {
      absl::StatusOr<ChunkDigests> digests = DigestOne(context, source, chunk, layout.chunk(chunk),
                                                       HostSpan(buffer.get(), kDigestStepBytes), with_blake3);
      // An end that `take` asked for is OK: `failed` keeps the status of a fetch alone.
      if (digests.ok() && take(chunk, *std::move(digests))) continue;
      ended = true;
      absl::MutexLock lock(&mutex);
      failed.Update(digests.status());  // the first one stays
    }
  };
  std::vector<std::thread> helpers;
  try {
    for (int i = 1; i < source.max_concurrency(); ++i) helpers.emplace_back(work);
  } catch (const std::system_error&) {
    // No more threads can be started: it takes longer.
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  return failed;
}

}  // namespace tensorcast
