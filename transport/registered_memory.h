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

  // The region that holds all of `bytes`; an empty span is in region 0.
  std::optional<size_t> RegionOf(ConstHostSpan bytes) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Region {
    const std::byte* base;
    uint64_t bytes;
  };
  mutable absl::Mutex mutex_;
  std::vector<Region> regions_ ABSL_GUARDED_BY(mutex_);
};

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
