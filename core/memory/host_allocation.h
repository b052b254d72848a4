// Memory of the host pool for one image, and views of such memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/byte_range.h"
#include "core/memory/extent.h"

namespace tensorcast {

class HostPool;

using HostSpan = std::span<std::byte>;
using ConstHostSpan = std::span<const std::byte>;

// What an allocation for these ranges of an image takes, in whole granules.
uint64_t GranuleBytes(std::span<const ByteRange> ranges);

// Memory for an image of bytes() bytes: for all of it, or for some of its granules alone. Each granule goes
// back with the last allocation that names it. Must not outlive its pool. Movable, immutable otherwise;
// thread-safe.
class HostAllocation {
 public:
  HostAllocation() = default;
  HostAllocation(HostAllocation&& other) noexcept;
  HostAllocation& operator=(HostAllocation&& other) noexcept;
  ~HostAllocation();

  uint64_t bytes() const { return bytes_; }  // of the image
  // In the order of the image, in whole granules of it (a small image: in whole pages): the last one may
  // reach past bytes().
  const std::vector<ImageExtent>& extents() const { return extents_; }

  // Whether all image bytes [offset, offset + bytes) have memory; false for what reaches past the image.
  bool Covers(uint64_t offset, uint64_t bytes) const;
  // The memory behind image bytes [offset, offset + bytes), in order: one span an extent touched.
  // REQUIRES: Covers(offset, bytes).
  std::vector<HostSpan> Spans(uint64_t offset, uint64_t bytes) const;
  // What Grow would take from the pool, in whole granules. REQUIRES: the ranges lie in the image.
  uint64_t MissingBytes(std::span<const ByteRange> ranges) const;
  // Another one that shares the granules of this one that hold bytes of the ranges, and no others.
  // REQUIRES: the ranges lie in the image.
  HostAllocation Only(std::span<const ByteRange> ranges) const;

 private:
  friend class HostPool;
  HostAllocation(HostPool* pool, uint64_t bytes, std::vector<ImageExtent> extents);

  HostPool* pool_ = nullptr;
  uint64_t bytes_ = 0;
  std::vector<ImageExtent> extents_;
};

}  // namespace tensorcast
