// Which memory a transport may read and write, and the checks that every lane makes before it touches any.
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
  // Returns the new region's index: regions are numbered from 0 in the order of their registration.
  // INVALID_ARGUMENT for an empty region or one that overlaps another.
  absl::StatusOr<size_t> Add(const std::byte* base, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Memory of a GPU, by its address, which no host memory has; it may go again. Added several times it goes
  // with the last removal. The region's index, which may have been that of one that went.
  struct AddedDevice {
    size_t region = 0;
    bool is_new = false;
  };
  absl::StatusOr<AddedDevice> AddDevice(DevicePtr base, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether that was the last one. REQUIRES: it was added.
  bool RemoveDevice(size_t region) ABSL_LOCKS_EXCLUDED(mutex_);

  // The region that holds all of `bytes`; an empty span is in region 0.
  std::optional<size_t> RegionOf(ConstHostSpan bytes) const ABSL_LOCKS_EXCLUDED(mutex_);
  // The device's address behind addresses that lie in a GPU's region; none where they do not.
  DevicePtr DeviceAt(ConstHostSpan bytes) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Region {
    const std::byte* base = nullptr;
    uint64_t bytes = 0;
    int users = 1;    // 0: it has gone, and its place is free
    int device = -1;  // of a GPU's memory
  };
  // INVALID_ARGUMENT for an empty region or one that overlaps another.
  absl::Status CheckNew(const std::byte* base, uint64_t bytes) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  mutable absl::Mutex mutex_;
  std::vector<Region> regions_ ABSL_GUARDED_BY(mutex_);
};

// A place in a GPU's memory as the checks and a network library take it: never read or written through.
inline HostSpan AddressesOf(DevicePtr base, uint64_t bytes) {
  return {reinterpret_cast<std::byte*>(base.address), bytes};  // NOLINT(performance-no-int-to-ptr)
}

// The bytes that a fetch asks for. INVALID_ARGUMENT when it reaches past the image or its destination is not
// registered.
absl::StatusOr<uint64_t> CheckFetch(const RegisteredMemory& memory, uint64_t image_bytes, uint64_t offset,
                                    const std::vector<HostSpan>& destination);

// FAILED_PRECONDITION when an in-place image does not lie in registered memory; INVALID_ARGUMENT when its
// segments are not as long as the image.
absl::Status CheckSegments(const RegisteredMemory& memory, uint64_t image_bytes,
                           const std::vector<ConstHostSpan>& segments);

// The same of an image that is served whole. What has yet to fill is taken at its word.
absl::Status CheckInPlace(const RegisteredMemory& memory, const ServedImage& image);

// The image bytes [offset, offset + bytes), in order: one span a segment touched. REQUIRES: they lie in the
// segments.
std::vector<ConstHostSpan> SliceSegments(const std::vector<ConstHostSpan>& segments, uint64_t offset,
                                         uint64_t bytes);

}  // namespace tensorcast::transport
