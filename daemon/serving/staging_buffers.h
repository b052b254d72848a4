// Pinned host memory through which replicas that are not in host memory are served: a bounded number of
// granules of the host pool, lent out one at a time. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/memory/host_pool.h"

namespace tensorcast::daemon {

class StagingBuffers : public std::enable_shared_from_this<StagingBuffers> {
 public:
  // A buffer is one granule, so that it is contiguous whatever the pool's fragmentation. RESOURCE_EXHAUSTED
  // when they do not fit. The pool must outlive every buffer.
  static absl::StatusOr<std::shared_ptr<StagingBuffers>> Create(HostPool* pool, int count);

  // Goes back when the last reference to it does.
  class Buffer {
   public:
    Buffer(std::shared_ptr<StagingBuffers> owner, HostSpan bytes) : owner_(std::move(owner)), bytes_(bytes) {}
    ~Buffer();
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    HostSpan bytes() const { return bytes_; }

   private:
    const std::shared_ptr<StagingBuffers> owner_;
    const HostSpan bytes_;
  };

  // Blocks while all are lent. DEADLINE_EXCEEDED when none comes back for so long, to whomever it then goes:
  // being one of many who wait is no failure.
  absl::StatusOr<std::shared_ptr<Buffer>> Acquire(absl::Duration patience);

 private:
  explicit StagingBuffers(HostAllocation memory) : memory_(std::move(memory)) {}
  void GiveBack(HostSpan bytes);

  const HostAllocation memory_;
  absl::Mutex mutex_;
  std::vector<HostSpan> free_ ABSL_GUARDED_BY(mutex_);
  uint64_t given_back_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tensorcast::daemon
