// Compares two rows of bytes and sets a bit for each element that differs. Uses AVX2 if the
// processor has it. Stateless; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorcast {

// The number of elements in one word of marks.
inline constexpr size_t kMarksPerWord = 64;

// Sets bit i % 64 of marks[i / 64] if element i differs, else clears it. An element has `width` bytes: 1, 2,
// 4 or 8. Bits past the last element are zero. REQUIRES: `bytes` is a multiple of 256, and `marks` has a bit
// for each element, in whole words.
void MarkChanged(uint32_t width, const std::byte* base, const std::byte* target, size_t bytes,
                 uint64_t* marks);

// As MarkChanged, but without instruction-set extensions of the processor. Tests compare both.
void MarkChangedPortable(uint32_t width, const std::byte* base, const std::byte* target, size_t bytes,
                         uint64_t* marks);

}  // namespace tensorcast
