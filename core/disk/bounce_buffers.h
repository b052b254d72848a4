// Aligned buffers for direct reads of what lies unaligned in its file, kept for the next read. Internal to
// this folder. Thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/memory/host_pool.h"

namespace tensorcast {

// Freed with free(3); aligned to kPackedAlignment. From 2 MiB on in huge pages where the host gives them: a
// direct read into 4 KiB pages is cut up by the number of pages that a disk takes in one request, often less
// than 1 MiB.
struct FreeDeleter {
  void operator()(std::byte* buffer) const;
};
using AlignedBuffer = std::unique_ptr<std::byte, FreeDeleter>;
AlignedBuffer AllocateAligned(uint64_t bytes);

class BounceBuffers {
 public:
  // There are as many as are in use at once; at most `keep` unused ones are kept.
  BounceBuffers(uint64_t buffer_bytes, int keep) : buffer_bytes_(buffer_bytes), keep_(keep) {}

  uint64_t buffer_bytes() const { return buffer_bytes_; }
  AlignedBuffer Take();
  void Give(AlignedBuffer buffer);

 private:
  const uint64_t buffer_bytes_;
  const int keep_;
  absl::Mutex mutex_;
  std::vector<AlignedBuffer> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
