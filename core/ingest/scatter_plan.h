// Turns the image of an earlier version into the wanted image in place. A plan keeps the values that differ,
// and their places. Processes may read the earlier image during Add, but not during Scatter. The image is in
// host memory or on a GPU; the plan is made on the host.
//
// The plan keeps absolute values in words of four bytes. So element types do not matter, and writing the
// values twice is harmless. For each word that differs, the plan uses six bytes. A block of 256 KiB is kept
// whole if more than a third of its words differ. With 1.4 % changed bf16 elements the plan uses 4 % of the
// image size. The memory of the plan is allocated a granule at a time.
//
// Add is thread-safe. Call the other functions after all calls of Add.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/device/device_runtime.h"
#include "core/memory/host_pool.h"

namespace tensorcast {

class ScatterPlan {
 public:
  // Allocates `bytes` (one granule) in one piece. Add calls Allocate under a lock.
  using Allocate = std::function<absl::StatusOr<HostAllocation>(uint64_t bytes)>;

  explicit ScatterPlan(Allocate allocate) : allocate_(std::move(allocate)) {}

  // Keeps the values that turn the span `there` into the span `wanted`. `there` has the bytes of the earlier
  // image at `offset`, or a copy of them. `wanted` may be freed after the call. Errors are those of Allocate.
  // REQUIRES: both spans have the same size, and these bytes are contiguous in the image that Scatter gets.
  absl::Status Add(uint64_t offset, std::span<const std::byte> there, std::span<const std::byte> wanted);

  // Writes what was added, on up to `threads` threads.
  void Scatter(const HostAllocation& image, int threads) const;
  // Enqueues the writes to an image on the stream's device, which reads the kept values from page-locked host
  // memory. The plan must live until the writes are done. The errors are those of Stream::Change.
  absl::Status Scatter(Stream& stream, DevicePtr image) const { return Enqueue(stream, image, true); }
  // As Scatter, but does not change the image. An error of this call or of the stream shows why Scatter would
  // fail.
  absl::Status Rehearse(Stream& stream, DevicePtr image) const { return Enqueue(stream, image, false); }

  uint64_t kept_bytes() const;  // the size of the kept values with their places

 private:
  struct Block {
    uint64_t offset = 0;  // in the image
    uint32_t bytes = 0;   // of the block
    uint32_t words = 0;   // the number of kept words; 0: the whole block is kept
    const std::byte* kept = nullptr;
  };
  struct Encoder;

  static void Write(const Block& block, std::byte* place);
  absl::Status Enqueue(Stream& stream, DevicePtr image, bool writes) const;
  // Keeps a copy of the parts, one after the other.
  absl::Status Keep(Block block, std::span<const std::byte> first, std::span<const std::byte> second);

  const Allocate allocate_;
  mutable absl::Mutex mutex_;
  std::vector<HostAllocation> memory_ ABSL_GUARDED_BY(mutex_);
  std::span<std::byte> free_ ABSL_GUARDED_BY(mutex_);  // unused memory of the last allocation
  uint64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Block> blocks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast
