// Chunk-sized host buffers on the way to a device or a file, shared by all ingests. Their number bounds how
// many chunks are between a source and such a destination: a slow destination stops the fetches for it.
//
// Where the host has several NUMA nodes, some are of each node with a GPU.
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
#include "core/memory/host_pool.h"
#include "core/memory/numa.h"

namespace tensorcast {

class StagingRing;

// One buffer, given back when destroyed. Must not outlive its ring. Movable.
class StagingBuffer {
 public:
  StagingBuffer() = default;
  StagingBuffer(StagingBuffer&& other) noexcept;
  StagingBuffer& operator=(StagingBuffer&& other) noexcept;
  ~StagingBuffer();

  // REQUIRES: bytes <= the ring's buffer_bytes().
  std::vector<HostSpan> Spans(uint64_t bytes) const { return buffer_->memory.Spans(0, bytes); }
  // That it was made for.
  std::optional<int> numa_node() const { return buffer_->numa_node; }

 private:
  friend class StagingRing;
  struct Buffer {
    HostAllocation memory;
    std::optional<int> numa_node;
  };
  StagingBuffer(StagingRing* ring, const Buffer* buffer) : ring_(ring), buffer_(buffer) {}
  void Reset();

  StagingRing* ring_ = nullptr;
  const Buffer* buffer_ = nullptr;
};

class StagingRing {
 public:
  // `buffers` may be 0: then nothing can be staged. RESOURCE_EXHAUSTED when they do not fit in the pool.
  static absl::StatusOr<std::unique_ptr<StagingRing>> Create(HostPool* pool, int buffers,
                                                             uint64_t buffer_bytes,
                                                             NumaNodes numa_nodes = {});

  // Blocks until a buffer is free; CANCELLED or DEADLINE_EXCEEDED when the context ends first. One near
  // `device` where such a one is free.
  absl::StatusOr<StagingBuffer> Acquire(const RequestContext& context,
                                        std::optional<int> device = std::nullopt);

  int buffers() const { return static_cast<int>(buffers_.size()); }
  // Of a device; nothing where it makes no difference.
  std::optional<int> NumaNodeOf(int device) const;
  uint64_t buffer_bytes() const { return buffer_bytes_; }

 private:
  friend class StagingBuffer;
  StagingRing(uint64_t buffer_bytes, NumaNodes numa_nodes)
      : buffer_bytes_(buffer_bytes), numa_nodes_(std::move(numa_nodes)) {}
  void GiveBack(const StagingBuffer::Buffer* buffer);

  const uint64_t buffer_bytes_;
  const NumaNodes numa_nodes_;
  std::vector<StagingBuffer::Buffer> buffers_;  // fixed once created
  absl::Mutex mutex_;
  std::vector<const StagingBuffer::Buffer*> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
