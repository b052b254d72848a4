// Chunk-sized host buffers for chunks that are copied to a device or a file, shared by all ingests. The
// number of buffers limits the chunks in flight to such a destination, so a slow destination stops its
// fetches.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "core/device/numa.h"
#include "core/ingest/staging_memory.h"
#include "core/memory/host_pool.h"

namespace tensorcast {

class StagingRing;

// One buffer; the destructor gives it back to the ring. Must not outlive the ring. Movable.
class StagingBuffer {
 public:
  StagingBuffer() = default;
  StagingBuffer(StagingBuffer&& other) noexcept;
  StagingBuffer& operator=(StagingBuffer&& other) noexcept;
  ~StagingBuffer();

  // REQUIRES: bytes <= the ring's buffer_bytes().
  std::vector<HostSpan> Spans(uint64_t bytes) const { return memory_->Spans(0, bytes); }

 private:
  friend class StagingRing;
  StagingBuffer(StagingRing* ring, const HostAllocation* memory) : ring_(ring), memory_(memory) {}
  void Reset();

  StagingRing* ring_ = nullptr;
  const HostAllocation* memory_ = nullptr;
};

class StagingRing {
 public:
  // `buffers` may be 0: then nothing can be staged. RESOURCE_EXHAUSTED if the buffers do not fit in the pool.
  // The pool must outlive the ring.
  static absl::StatusOr<std::unique_ptr<StagingRing>> Create(HostPool* pool, int buffers,
                                                             uint64_t buffer_bytes,
                                                             const NumaNodes& numa_nodes = {});

  // Blocks until a buffer is free; prefers a buffer near `device`. CANCELLED or DEADLINE_EXCEEDED if the
  // context ends first.
  absl::StatusOr<StagingBuffer> Acquire(const RequestContext& context, std::optional<int> device = {});

  int buffers() const { return buffers_; }
  uint64_t buffer_bytes() const { return buffer_bytes_; }

 private:
  friend class StagingBuffer;
  StagingRing(uint64_t buffer_bytes, StagingMemory memory)
      : buffer_bytes_(buffer_bytes), buffers_(memory.count()), memory_(std::move(memory)) {}
  void GiveBack(const HostAllocation* memory);

  const uint64_t buffer_bytes_;
  const int buffers_;
  absl::Mutex mutex_;
  StagingMemory memory_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
