// Maps the bytes of an image to bytes of objects. Immutable; thread-safe. Other folders use only
// ObjectExtent.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/artifact/layout.h"
#include "core/memory/host_pool.h"

namespace tensorcast {

// A range of image bytes that is contiguous in an object. Image bytes that no extent covers are zero.
struct ObjectExtent {
  uint32_t object = 0;  // index into the list of objects
  uint64_t object_offset = 0;
  uint64_t image_offset = 0;
  uint64_t bytes = 0;
};

// A range of bytes that is contiguous at its destination. It is also contiguous in an object, or all zeros.
struct ObjectPiece {
  static constexpr uint32_t kZeros = ~uint32_t{0};
  uint32_t object = kZeros;
  uint64_t object_offset = 0;
  HostSpan destination;

  bool zeros() const { return object == kZeros; }
};

class ObjectExtents {
 public:
  // `object_bytes` has the size of each object. INVALID_ARGUMENT if extents overlap in the image, reach past
  // the image or their object, or name an object that does not exist.
  static absl::StatusOr<ObjectExtents> Create(std::vector<ObjectExtent> extents, uint64_t image_bytes,
                                              const std::vector<uint64_t>& object_bytes);

  uint64_t image_bytes() const { return image_bytes_; }

  // Divides the range into pieces, in image order: a new piece begins wherever the object or the destination
  // changes. REQUIRES: the range lies in the image, and the destination has the range's size.
  std::vector<ObjectPiece> Cut(const ByteRange& range, std::span<const HostSpan> destination) const;

 private:
  ObjectExtents(std::vector<ObjectExtent> extents, uint64_t image_bytes)
      : extents_(std::move(extents)), image_bytes_(image_bytes) {}

  std::vector<ObjectExtent> extents_;  // sorted by image_offset; none is empty
  uint64_t image_bytes_ = 0;
};

}  // namespace tensorcast
