// Transparent huge pages for shared memory, for hosts without reserved huge pages.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorcast {

inline constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

// Asks the kernel to back each whole 2 MiB of a writable memfd mapping with one huge page (MADV_COLLAPSE,
// which needs Linux 6.1 and the value "madvise" or "always" in transparent_hugepage/enabled). Best effort: a
// failure leaves ordinary pages. Changes no byte, so the memory may be in use during the call. REQUIRES:
// `base` and its file offset are multiples of 2 MiB.
void AskForHugePages(std::byte* base, uint64_t bytes);

}  // namespace tensorcast
