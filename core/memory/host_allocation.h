// Memory of the host pool for one image, and views of such memory. Sizes and offsets are in bytes.
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

// The bytes, in whole granules, that an allocation for these ranges of an image takes.
uint64_t GranuleBytes(std::span<const ByteRange> ranges);

// Owns memory for an image of bytes() bytes: for the whole image, or for only some of its granules.
// Allocations can share granules. The last allocation that has a granule gives the granule back to the pool.
// Must not outlive its pool. Movable. Its const functions are thread-safe.
class HostAllocation {
 public:
  HostAllocation() = default;
  HostAllocation(HostAllocation&& other) noexcept;
  HostAllocation& operator=(HostAllocation&& other) noexcept;
  ~HostAllocation();

  uint64_t bytes() const { return bytes_; }  // of the image
  // In image order. Extents consist of whole granules (whole pages for a small image), so the last one may
  // reach past bytes().
  const std::vector<ImageExtent>& extents() const { return extents_; }

  // Whether all image bytes [offset, offset + bytes) have memory; false for a range that reaches past the
  // image.
  bool Covers(uint64_t offset, uint64_t bytes) const;
  // The memory of image bytes [offset, offset + bytes), in order: one span for each extent that the range
  // touches. REQUIRES: Covers(offset, bytes).
  std::vector<HostSpan> Spans(uint64_t offset, uint64_t bytes) const;
  // The bytes that HostPool::Grow would take, in whole granules. REQUIRES: the ranges lie in the image.
  uint64_t MissingBytes(std::span<const ByteRange> ranges) const;
  // A new allocation that shares only the granules of this allocation that hold bytes of the ranges.
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
