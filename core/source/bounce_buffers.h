// Aligned buffers for direct reads of data that is not aligned in its file. Buffers are kept for the next
// read. Internal to this folder. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/memory/host_pool.h"

namespace tensorcast {

inline constexpr uint64_t kBlockBytes = 4096;  // of direct I/O

constexpr uint64_t AlignDown(uint64_t value) { return value / kBlockBytes * kBlockBytes; }
constexpr uint64_t AlignUp(uint64_t value) { return AlignDown(value + kBlockBytes - 1); }

// Freed with free(3); aligned to kBlockBytes. From 2 MiB on in huge pages where the host gives them: a
// direct read into 4 KiB pages is cut up by the number of pages that a disk takes in one request, often less
// than 1 MiB.
struct FreeDeleter {
  void operator()(std::byte* buffer) const;
};
using AlignedBuffer = std::unique_ptr<std::byte, FreeDeleter>;
AlignedBuffer AllocateAligned(uint64_t bytes);

class BounceBuffers {
 public:
  // Makes as many buffers as are in use at the same time; keeps at most `keep` unused ones.
  BounceBuffers(uint64_t buffer_bytes, int keep) : buffer_bytes_(buffer_bytes), keep_(keep) {}

  AlignedBuffer Take();
  void Give(AlignedBuffer buffer);

 private:
  const uint64_t buffer_bytes_;
  const int keep_;
  absl::Mutex mutex_;
  std::vector<AlignedBuffer> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
