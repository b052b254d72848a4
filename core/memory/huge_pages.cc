#include "core/memory/huge_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1; its number is the same on every architecture
#endif

namespace tensorcast {

void AskForHugePages(std::byte* base, uint64_t bytes) {
  // Best effort: an error leaves ordinary pages, which the caller makes or the first touch brings.
  bytes -= bytes % kHugePageBytes;
  if (bytes == 0 || madvise(base, bytes, MADV_HUGEPAGE) != 0) return;
  // Only what has a page already is collapsed into a huge one. One is enough, and leaves little to be copied.
  const auto page_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (uint64_t at = 0; at < bytes; at += kHugePageBytes) {
    if (madvise(base + at, page_bytes, MADV_POPULATE_WRITE) != 0) return;
  }
  madvise(base, bytes, MADV_COLLAPSE);  // goes on past what it cannot have
}

}  // namespace tensorcast
