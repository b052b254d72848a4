// A leased replica in the form that a transport serves. Holds the lease until Release. Replicas in host
// memory are served in place. Replicas on a GPU or a disk are read piece by piece through staging buffers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/device/device_runtime.h"
#include "core/device/numa.h"
#include "core/ingest/staging_memory.h"
#include "core/memory/host_pool.h"
#include "core/replicas/replica_lease.h"
#include "transport/transport.h"

namespace tensorcast::daemon {

// Pinned host memory for serving replicas that are not in host memory: a bounded number of granules of the
// host pool, lent one at a time. Thread-safe.
class StagingBuffers : public std::enable_shared_from_this<StagingBuffers> {
 public:
  // Each buffer is one granule (kGranuleBytes), so it is contiguous even in a fragmented pool.
  // RESOURCE_EXHAUSTED when the pool has no room for `count` buffers. The pool must outlive every buffer.
  static absl::StatusOr<std::shared_ptr<StagingBuffers>> Create(HostPool* pool, int count,
                                                                const NumaNodes& numa_nodes = {});

  // A lent buffer. The destructor returns the buffer to `owner`.
  class Buffer {
   public:
    Buffer(std::shared_ptr<StagingBuffers> owner, const HostAllocation* memory)
        : owner_(std::move(owner)), memory_(memory) {}
    ~Buffer();
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    HostSpan bytes() const { return memory_->Spans(0, kGranuleBytes).front(); }

   private:
    const std::shared_ptr<StagingBuffers> owner_;
    const HostAllocation* const memory_;
  };

  // Blocks while all buffers are lent. DEADLINE_EXCEEDED when no reader returns a buffer for `patience`.
  // Prefers a buffer near `device`, the ordinal of the GPU that is read.
  absl::StatusOr<std::shared_ptr<Buffer>> Acquire(absl::Duration patience, std::optional<int> device = {});

 private:
  explicit StagingBuffers(StagingMemory memory) : memory_(std::move(memory)) {}
  void GiveBack(const HostAllocation* memory);

  absl::Mutex mutex_;
  StagingMemory memory_ ABSL_GUARDED_BY(mutex_);
  uint64_t given_back_ ABSL_GUARDED_BY(mutex_) = 0;
};

class ServedReplica : public transport::ServedImage {
 public:
  // Releases the lease, even if references to the image remain. REQUIRES: no thread reads the image now or
  // later. Destroying the image's Serving ensures this.
  virtual void Release() = 0;
  // Time spent in staged reads, summed over reads that overlapped.
  virtual absl::Duration reading() const { return absl::ZeroDuration(); }
};

// A staged read fails with DEADLINE_EXCEEDED when no pull returns a buffer for `staging_wait`.
absl::StatusOr<std::shared_ptr<ServedReplica>> ServeReplica(std::shared_ptr<ReplicaLease> lease,
                                                            DeviceRuntime* devices,
                                                            std::shared_ptr<StagingBuffers> staging,
                                                            absl::Duration staging_wait);

}  // namespace tensorcast::daemon
