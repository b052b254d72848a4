// Compares two rows of bytes and marks the elements that differ, a bit for each. The main loop of an
// encoding; uses the widest instructions of the processor. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorcast {

// Elements that one word of marks is for.
inline constexpr size_t kMarksPerWord = 64;

// Sets marks[i / 64] bit i % 64 where element i of `width` bytes (1, 2, 4 or 8) differs. REQUIRES: `bytes` is
// a multiple of 256; marks have room for all elements, in whole words. Bits past the last are zero.
void MarkChanged(uint32_t width, const std::byte* base, const std::byte* target, size_t bytes,
                 uint64_t* marks);

// The same without the processor's extensions, for tests to compare with.
void MarkChangedPortable(uint32_t width, const std::byte* base, const std::byte* target, size_t bytes,
                         uint64_t* marks);

}  // namespace tensorcast
