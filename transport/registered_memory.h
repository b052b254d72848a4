// The memory that a transport may read and write, and the checks that lanes make before they access memory.
// Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/memory/host_pool.h"
#include "transport/transport.h"

namespace tensorcast::transport {

class RegisteredMemory {
 public:
  // Adds host memory. Returns the index of the new region; indices count from 0. INVALID_ARGUMENT if the
  // memory is empty or overlaps another region.
  absl::StatusOr<size_t> Add(const std::byte* base, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Adds GPU memory. If the same memory is a region already, adds one user to this region and returns the
  // region's index with is_new == false. A new region may get the index of a removed region. INVALID_ARGUMENT
  // if the memory is empty or overlaps another region.
  struct AddedDevice {
    size_t region = 0;
    bool is_new = false;
  };
  absl::StatusOr<AddedDevice> AddDevice(DevicePtr base, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Removes one user of the region. When the last user is removed, removes the region and returns true.
  // REQUIRES: AddDevice returned `region`.
  bool RemoveDevice(size_t region) ABSL_LOCKS_EXCLUDED(mutex_);

  // The index of the region that contains all of `bytes`; nullopt if none does, 0 if `bytes` is empty.
  std::optional<size_t> RegionOf(ConstHostSpan bytes) const ABSL_LOCKS_EXCLUDED(mutex_);
  // The device address of `bytes`; null if `bytes` is empty or not in a GPU's region. REQUIRES: the region is
  // not removed during the call.
  DevicePtr DeviceAt(ConstHostSpan bytes) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Region {
    const std::byte* base = nullptr;
    uint64_t bytes = 0;
    int users = 1;    // 0: the region was removed, and its index is free
    int device = -1;  // the GPU; -1: host memory
  };
  absl::Status CheckNew(const std::byte* base, uint64_t bytes) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  mutable absl::Mutex mutex_;
  std::vector<Region> regions_ ABSL_GUARDED_BY(mutex_);
};

// GPU memory as a span of addresses. The host must not read or write the span.
inline HostSpan AddressesOf(DevicePtr base, uint64_t bytes) {
  return {reinterpret_cast<std::byte*>(base.address), bytes};  // NOLINT(performance-no-int-to-ptr)
}

// Checks a fetch of image bytes from `offset` on, and returns the total size of `destination`.
// INVALID_ARGUMENT if the range exceeds the image, or if a span is not within one registered region.
absl::StatusOr<uint64_t> CheckFetch(const RegisteredMemory& memory, uint64_t image_bytes, uint64_t offset,
                                    const std::vector<HostSpan>& destination);

// Checks the segments of an image that is served in place (ServedImage). FAILED_PRECONDITION if a segment is
// not in registered memory. INVALID_ARGUMENT if the sizes of the segments do not add up to `image_bytes`.
absl::Status CheckSegments(const RegisteredMemory& memory, uint64_t image_bytes,
                           const std::vector<ConstHostSpan>& segments);

// Calls CheckSegments for a complete image in place. For any other image, returns OK without a check.
absl::Status CheckInPlace(const RegisteredMemory& memory, const ServedImage& image);

// The memory of image bytes [offset, offset + bytes), in order: one span for each segment that the range
// overlaps. REQUIRES: the segments contain the range.
std::vector<ConstHostSpan> SliceSegments(const std::vector<ConstHostSpan>& segments, uint64_t offset,
                                         uint64_t bytes);

}  // namespace tensorcast::transport
