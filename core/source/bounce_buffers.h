// Aligned buffers for direct I/O of data that is not aligned in its file. Buffers are kept for later reads.
// Internal to this folder. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/memory/host_pool.h"

namespace tensorcast {

inline constexpr uint64_t kBlockBytes = 4096;  // the unit of direct I/O

constexpr uint64_t AlignDown(uint64_t value) { return value / kBlockBytes * kBlockBytes; }
constexpr uint64_t AlignUp(uint64_t value) { return AlignDown(value + kBlockBytes - 1); }

// A buffer aligned to kBlockBytes. A buffer of 2 MiB or more consists of huge pages if the host provides
// them. With 4 KiB pages the kernel would split large direct reads.
struct FreeDeleter {
  void operator()(std::byte* buffer) const;
};
using AlignedBuffer = std::unique_ptr<std::byte, FreeDeleter>;
AlignedBuffer AllocateAligned(uint64_t bytes);

class BounceBuffers {
 public:
  // Keeps at most `keep` unused buffers of `buffer_bytes` each.
  BounceBuffers(uint64_t buffer_bytes, int keep) : buffer_bytes_(buffer_bytes), keep_(keep) {}

  // Returns an unused buffer, or a new one if there is none.
  AlignedBuffer Take();
  // Takes a buffer back; ignores null.
  void Give(AlignedBuffer buffer);

 private:
  const uint64_t buffer_bytes_;
  const int keep_;
  absl::Mutex mutex_;
  std::vector<AlignedBuffer> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
