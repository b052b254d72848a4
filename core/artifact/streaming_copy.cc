#include "core/artifact/streaming_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace tensorcast {

#if defined(__x86_64__)
namespace {

constexpr size_t kLineBytes = 64;
// How far ahead of the copy the source is fetched: the hardware's own prefetch stops at every 4 KiB page.
constexpr size_t kPrefetchBytes = 1024;
// Below this the lines are more likely wanted in the cache than not.
constexpr size_t kMinStreamedBytes = 2048;

// What is copied side by side: four pages, each a stream of its own for the hardware's prefetch, and four
// rows of memory open at once.
constexpr size_t kPageBytes = 4096;
constexpr size_t kStreams = 4;

// REQUIRES: destination is aligned to 64 bytes.
inline void StreamLine(std::byte* destination, const std::byte* source) {
  const auto* from = reinterpret_cast<const __m128i*>(source);
  auto* to = reinterpret_cast<__m128i*>(destination);
  const __m128i a = _mm_loadu_si128(from);
  const __m128i b = _mm_loadu_si128(from + 1);
  const __m128i c = _mm_loadu_si128(from + 2);
  const __m128i d = _mm_loadu_si128(from + 3);
  _mm_stream_si128(to, a);
  _mm_stream_si128(to + 1, b);
  _mm_stream_si128(to + 2, c);
  _mm_stream_si128(to + 3, d);
}

// REQUIRES: destination is aligned to 64 bytes, bytes is a multiple of 64.
void StreamLines(std::byte* destination, const std::byte* source, size_t bytes) {
  for (; bytes >= kStreams * kPageBytes; bytes -= kStreams * kPageBytes) {
    for (size_t i = 0; i < kPageBytes; i += kLineBytes) {
      // Near a page's end, the next group's.
      const size_t ahead = i + kPrefetchBytes < kPageBytes ? i + kPrefetchBytes
                                                           : i + kPrefetchBytes + (kStreams - 1) * kPageBytes;
      for (size_t page = 0; page < kStreams * kPageBytes; page += kPageBytes) {
        _mm_prefetch(reinterpret_cast<const char*>(source + page + ahead), _MM_HINT_T0);
        StreamLine(destination + page + i, source + page + i);
      }
    }
    destination += kStreams * kPageBytes;
    source += kStreams * kPageBytes;
  }
  for (size_t i = 0; i < bytes; i += kLineBytes) {
    _mm_prefetch(reinterpret_cast<const char*>(source + i) + kPrefetchBytes, _MM_HINT_T0);
    StreamLine(destination + i, source + i);
  }
}

}  // namespace

void StreamingCopy(std::byte* destination, std::span<const std::byte> source) {
  if (source.size() < kMinStreamedBytes) {
    if (!source.empty()) {  // an empty span may hold null, which memcpy must not be given
      std::memcpy(destination, source.data(), source.size());
    }
    return;
  }
  const size_t head = -reinterpret_cast<uintptr_t>(destination) % kLineBytes;
  const size_t lines = (source.size() - head) / kLineBytes * kLineBytes;
  std::memcpy(destination, source.data(), head);
  StreamLines(destination + head, source.data() + head, lines);
  std::memcpy(destination + head + lines, source.data() + head + lines, source.size() - head - lines);
  // Non-temporal stores are not ordered by the release operations that publish the bytes to other threads.
  _mm_sfence();
}

#else

void StreamingCopy(std::byte* destination, std::span<const std::byte> source) {
  if (!source.empty()) std::memcpy(destination, source.data(), source.size());
}

#endif

}  // namespace tensorcast
