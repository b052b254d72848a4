#include "core/difference/changed_marks.h"

#include "core/difference/element_order.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tensorcast {
namespace {

// A half word of marks, 32 elements, at a time. `bytes` is a multiple of 256, which 32 elements of any width
// divide, so there is never a smaller rest; an odd number of half words leaves the upper half of the last
// word zero.
constexpr size_t kHalfWord = 32;

template <std::unsigned_integral U>
uint32_t ChangedHalfPortable(const std::byte* base, const std::byte* target) {
  uint32_t half = 0;
  for (size_t i = 0; i < kHalfWord; ++i) {
    const size_t at = i * sizeof(U);
    half |= uint32_t{LoadElement<U>(base + at) != LoadElement<U>(target + at)} << i;
  }
  return half;
}

template <std::unsigned_integral U>
void MarkPortable(const std::byte* base, const std::byte* target, size_t bytes, uint64_t* marks) {
  constexpr size_t kHalfBytes = kHalfWord * sizeof(U);
  for (size_t offset = 0, half = 0; offset < bytes; offset += kHalfBytes, ++half) {
    const uint64_t changed = ChangedHalfPortable<U>(base + offset, target + offset);
    if (half % 2 == 0) {
      marks[half / 2] = changed;
    } else {
      marks[half / 2] |= changed << kHalfWord;
    }
  }
}

#if defined(__x86_64__)

__attribute__((target("avx2"), always_inline)) inline __m256i Load(const std::byte* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

// Turns 32 comparisons into 32 bits, in order. A comparison gives all ones for equal elements, so the bits of
// equal ones are gathered and then inverted. For elements of two bytes, the pack works within 128-bit lanes,
// and the permutation puts the lanes' parts back in order.
template <size_t kWidth>
__attribute__((target("avx2"), always_inline)) inline uint32_t ChangedHalf(const std::byte* a,
                                                                           const std::byte* b) {
  if constexpr (kWidth == 1) {
    return ~static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(Load(a), Load(b))));
  } else if constexpr (kWidth == 2) {
    const __m256i low = _mm256_cmpeq_epi16(Load(a), Load(b));
    const __m256i high = _mm256_cmpeq_epi16(Load(a + 32), Load(b + 32));
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xD8);
    return ~static_cast<uint32_t>(_mm256_movemask_epi8(bytes));
  } else {
    uint32_t half = 0;
    for (size_t i = 0; i < kWidth; ++i) {
      const __m256i left = Load(a + 32 * i);
      const __m256i right = Load(b + 32 * i);
      const int equal = kWidth == 4
                            ? _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(left, right)))
                            : _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(left, right)));
      half |= static_cast<uint32_t>(equal) << (32 / kWidth * i);
    }
    return ~half;
  }
}

template <size_t kWidth>
__attribute__((target("avx2"))) void MarkAvx2(const std::byte* base, const std::byte* target, size_t bytes,
                                              uint64_t* marks) {
  constexpr size_t kHalfBytes = kHalfWord * kWidth;
  size_t offset = 0;
  for (; offset + 2 * kHalfBytes <= bytes; offset += 2 * kHalfBytes) {
    const uint64_t low = ChangedHalf<kWidth>(base + offset, target + offset);
    const uint64_t high = ChangedHalf<kWidth>(base + offset + kHalfBytes, target + offset + kHalfBytes);
    *marks++ = low | high << kHalfWord;
  }
  if (offset < bytes) *marks = ChangedHalf<kWidth>(base + offset, target + offset);
}

// Asked once. The build is for any x86-64 processor, and only the functions above use AVX2.
bool HasAvx2() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}

#endif

}  // namespace

void MarkChangedPortable(uint32_t width, const std::byte* base, const std::byte* target, size_t bytes,
                         uint64_t* marks) {
  WithElementType(width, [&]<typename U>(U) { MarkPortable<U>(base, target, bytes, marks); });
}

void MarkChanged(uint32_t width, const std::byte* base, const std::byte* target, size_t bytes,
                 uint64_t* marks) {
#if defined(__x86_64__)
  if (HasAvx2()) {
    WithElementType(width, [&]<typename U>(U) { MarkAvx2<sizeof(U)>(base, target, bytes, marks); });
    return;
  }
#endif
  MarkChangedPortable(width, base, target, bytes, marks);
}

}  // namespace tensorcast
