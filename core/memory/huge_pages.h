// Huge pages for shared memory where the host has set none aside for it: transparent ones.
//
// A process that maps such memory takes a fault for every 2 MiB, where ordinary shared pages cost one for
// every 64 KiB; and making them is a few times as fast. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorcast {

inline constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

// Gives each whole 2 MiB of a writable mapping of a memfd one huge page, as far as the kernel will
// (Linux 6.1; transparent_hugepage/enabled is "madvise" or "always"). Best effort: where it fails, the pages
// stay as they are, and some may appear. Changes no byte, so the memory may be in use meanwhile. `base` lies
// at a boundary of a huge page, as in the file.
void AskForHugePages(std::byte* base, uint64_t bytes);

}  // namespace tensorcast
