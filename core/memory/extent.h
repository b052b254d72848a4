// Granules, the unit in which the host pool hands out memory; extents, which are pieces of the pool; and the
// mapping of an image's granules to extents. Value types and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/byte_range.h"

namespace tensorcast {

inline constexpr uint64_t kGranuleBytes = uint64_t{2} << 20;
// The size in bytes of the largest image that shares a granule with others.
inline constexpr uint64_t kMaxSmallBytes = kGranuleBytes / 4;
inline bool IsSmallImage(uint64_t image_bytes) { return image_bytes > 0 && image_bytes <= kMaxSmallBytes; }

// A piece of the pool. `offset` counts from the pool's start.
struct Extent {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  friend bool operator==(const Extent&, const Extent&) = default;
};

// The piece of the pool that holds the bytes of an image from `image_offset` on.
struct ImageExtent {
  uint64_t image_offset = 0;
  Extent extent;
  friend bool operator==(const ImageExtent&, const ImageExtent&) = default;
};

// Granules of the pool, or of an image.
struct GranuleRange {
  uint64_t first = 0;
  uint64_t count = 0;
  friend bool operator==(const GranuleRange&, const GranuleRange&) = default;
};

// The smallest piece that a client can map.
uint64_t PageBytes();
inline uint64_t RoundUpToPages(uint64_t bytes) {
  return (bytes + PageBytes() - 1) / PageBytes() * PageBytes();
}

// The number of granules that `bytes` bytes need. Does not overflow for any input.
uint64_t GranulesFor(uint64_t bytes);
// The granules of an image that hold bytes of the ranges: ascending, disjoint, and joined where they touch.
// REQUIRES: the ranges lie in the image.
std::vector<GranuleRange> GranulesOf(uint64_t image_bytes, std::span<const ByteRange> ranges);
// The number of granules in the ranges.
uint64_t CountOf(const std::vector<GranuleRange>& ranges);

// The extent's end, as an offset in the image.
inline uint64_t ImageEnd(const ImageExtent& extent) { return extent.image_offset + extent.extent.bytes; }
// The extent that holds the image's byte at `offset`; if none does, the first extent after `offset`, or
// extents.end(). Here and below, `extents` are in image order.
std::vector<ImageExtent>::const_iterator ExtentAt(const std::vector<ImageExtent>& extents, uint64_t offset);
// The image's granules among `wanted` that the extents do not hold, in ascending order.
std::vector<GranuleRange> Missing(const std::vector<GranuleRange>& wanted,
                                  const std::vector<ImageExtent>& extents);
// Maps the image's granules `places` to the pool's granules `pool`, in order. REQUIRES: both have the same
// number of granules.
std::vector<ImageExtent> Lay(const std::vector<GranuleRange>& places, const std::vector<GranuleRange>& pool);
// The parts of the extents that lie in the image's granules `wanted`, in order.
std::vector<ImageExtent> Cut(const std::vector<ImageExtent>& extents,
                             const std::vector<GranuleRange>& wanted);
// Sorts extents of one image in image order, and joins two extents if they touch both in the image and in one
// segment of the pool.
std::vector<ImageExtent> Joined(std::vector<ImageExtent> extents, uint64_t segment_bytes);

}  // namespace tensorcast
