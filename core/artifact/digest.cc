#include "core/artifact/digest.h"

#include <blake3.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "absl/log/check.h"
#include "absl/strings/escaping.h"

// The state's definition is only visible with this; the library is linked dynamically all the same.
#define XXH_STATIC_LINKING_ONLY
#if defined(__x86_64__)
#include <xxh_x86dispatch.h>  // the XXH3 functions become those for the processor at hand
#else
#include <xxhash.h>
#endif

namespace tensorcast {
namespace {

// The step of a copy with digest: its bytes stay in the first cache levels until they are digested. A
// multiple of what the copy does side by side (README.md has the figures).
constexpr size_t kFusedStepBytes = size_t{32} << 10;

// The step of longer inputs: each of the two digests reads a step, the second one from the cache.
constexpr size_t kStepBytes = size_t{128} << 10;

Digest Canonical(const XXH128_hash_t& hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  Digest digest;
  static_assert(sizeof(canonical.digest) == sizeof(digest.bytes));
  std::memcpy(digest.bytes.data(), canonical.digest, sizeof(canonical.digest));
  return digest;
}

Blake3Digest Finalize(const blake3_hasher& hasher) {
  Blake3Digest digest;
  static_assert(sizeof(digest.bytes) == BLAKE3_OUT_LEN);
  blake3_hasher_finalize(&hasher, digest.bytes.data(), digest.bytes.size());
  return digest;
}

template <size_t N>
std::string Hex(const std::array<uint8_t, N>& bytes) {
  return absl::BytesToHexString(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

}  // namespace

std::string Digest::ToHex() const { return Hex(bytes); }
std::string Blake3Digest::ToHex() const { return Hex(bytes); }

Digest ComputeDigest(std::span<const std::byte> bytes) {
  return Canonical(XXH3_128bits(bytes.data(), bytes.size()));
}

Blake3Digest ComputeBlake3(std::span<const std::byte> bytes) {
  blake3_hasher hasher;
  blake3_hasher_init(&hasher);
  blake3_hasher_update(&hasher, bytes.data(), bytes.size());
  return Finalize(hasher);
}

Blake3Digest Blake3OfPieces(std::span<const std::span<std::byte>> pieces) {
  blake3_hasher hasher;
  blake3_hasher_init(&hasher);
  for (const std::span<std::byte> piece : pieces) blake3_hasher_update(&hasher, piece.data(), piece.size());
  return Finalize(hasher);
}

// A type of its own, since the hashers' headers and their large states are not for code that includes our
// header.
struct DigestBuilder::State {
  XXH3_state_t xxh;
  bool with_blake3 = false;
  blake3_hasher blake3;  // initialised only where it is asked for
};

DigestBuilder::DigestBuilder(bool with_blake3) : state_(std::make_unique<State>()) {
  state_->with_blake3 = with_blake3;
  Reset();
}
DigestBuilder::~DigestBuilder() = default;
DigestBuilder::DigestBuilder(DigestBuilder&&) noexcept = default;
DigestBuilder& DigestBuilder::operator=(DigestBuilder&&) noexcept = default;

void DigestBuilder::Reset() {
  CHECK_EQ(XXH3_128bits_reset(&state_->xxh), XXH_OK);
  if (state_->with_blake3) blake3_hasher_init(&state_->blake3);
}

void DigestBuilder::Update(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {  // also because xxHash takes a null pointer for an error
    // XXH3 alone takes all bytes at once. With two digests the bytes come in steps, so that the second one
    // finds each step in the cache.
    const auto step = state_->with_blake3 ? bytes.first(std::min(bytes.size(), kStepBytes)) : bytes;
    CHECK_EQ(XXH3_128bits_update(&state_->xxh, step.data(), step.size()), XXH_OK);
    if (state_->with_blake3) blake3_hasher_update(&state_->blake3, step.data(), step.size());
    bytes = bytes.subspan(step.size());
  }
}

void DigestBuilder::UpdateAndCopy(std::byte* destination, std::span<const std::byte> source) {
  while (!source.empty()) {
    const auto step = source.first(std::min(source.size(), kFusedStepBytes));
    StreamingCopy(destination, step);
    Update(step);  // the source, which the copy left in the cache; the destination went past it
    destination += step.size();
    source = source.subspan(step.size());
  }
}

Digest DigestBuilder::Finish() const { return Canonical(XXH3_128bits_digest(&state_->xxh)); }

ChunkDigests DigestBuilder::FinishChunk() const {
  ChunkDigests digests{.xxh3 = Finish(), .blake3 = std::nullopt};
  if (state_->with_blake3) digests.blake3 = Finalize(state_->blake3);
  return digests;
}

#if defined(__x86_64__)
namespace {

constexpr size_t kLineBytes = 64;
// How far ahead of the copy the source is fetched: the hardware's own prefetch stops at every 4 KiB page.
constexpr size_t kPrefetchBytes = 1024;
// Below this size the lines are more likely wanted in the cache than not.
constexpr size_t kMinStreamedBytes = 2048;

// Where the processor combines the stores of several lines at a time, the copy runs in four pages side by
// side, each a stream of its own for the hardware's prefetch, and four rows of memory open at once.
constexpr size_t kPageBytes = 4096;
constexpr size_t kStreams = 4;

// AMD's processors without AVX-512 (measured: family 25, model 1) write lines in four pages in parts, at a
// quarter of the rate; two pages gain nothing there.
bool CopiesPagesSideBySide() {
  static const bool side_by_side = !__builtin_cpu_is("amd") || __builtin_cpu_supports("avx512f");
  return side_by_side;
}

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
  for (; CopiesPagesSideBySide() && bytes >= kStreams * kPageBytes; bytes -= kStreams * kPageBytes) {
    for (size_t i = 0; i < kPageBytes; i += kLineBytes) {
      // Near a page's end the prefetch is for the next group.
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
    _mm_sfence();  // for what ReadAndStream wrote before
    return;
  }
  // Non-temporal stores take whole aligned lines. What stands before the first line of the destination and
  // behind the last is copied the ordinary way. The source need not be aligned.
  const size_t head = -reinterpret_cast<uintptr_t>(destination) % kLineBytes;
  const size_t lines = (source.size() - head) / kLineBytes * kLineBytes;
  std::memcpy(destination, source.data(), head);
  StreamLines(destination + head, source.data() + head, lines);
  std::memcpy(destination + head + lines, source.data() + head + lines, source.size() - head - lines);
  // Non-temporal stores are not ordered by the release operations that publish the bytes to other threads.
  _mm_sfence();
}

void ReadAndStream(std::byte* buffer, std::span<const std::byte> next, std::byte* destination,
                   std::span<const std::byte> made) {
  const bool aligned = reinterpret_cast<uintptr_t>(destination) % kLineBytes == 0;
  const size_t lines = aligned ? std::min(next.size(), made.size()) / kLineBytes * kLineBytes : 0;
  for (size_t i = 0; i < lines; i += kLineBytes) {
    _mm_prefetch(reinterpret_cast<const char*>(next.data() + i) + kPrefetchBytes, _MM_HINT_T0);
    std::memcpy(buffer + i, next.data() + i, kLineBytes);
    StreamLine(destination + i, made.data() + i);
  }
  if (lines < next.size()) std::memcpy(buffer + lines, next.data() + lines, next.size() - lines);
  if (lines < made.size()) StreamingCopy(destination + lines, made.subspan(lines));
}

#else

void StreamingCopy(std::byte* destination, std::span<const std::byte> source) {
  if (!source.empty()) std::memcpy(destination, source.data(), source.size());
}

void ReadAndStream(std::byte* buffer, std::span<const std::byte> next, std::byte* destination,
                   std::span<const std::byte> made) {
  if (!next.empty()) std::memcpy(buffer, next.data(), next.size());
  StreamingCopy(destination, made);
}

#endif

}  // namespace tensorcast
