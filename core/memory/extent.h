// The unit in which the host pool hands out memory, pieces of the pool, and how the granules of an image lie
// in them. Values and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/byte_range.h"

namespace tensorcast {

inline constexpr uint64_t kGranuleBytes = uint64_t{2} << 20;

// A piece of the pool: bytes from the pool's start.
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

// How many granules hold so many bytes. No input overflows.
uint64_t GranulesFor(uint64_t bytes);
// The granules of an image that hold bytes of the ranges, each once, in ascending order and joined where they
// touch. REQUIRES: the ranges lie in the image.
std::vector<GranuleRange> GranulesOf(uint64_t image_bytes, std::span<const ByteRange> ranges);
uint64_t CountOf(const std::vector<GranuleRange>& ranges);

// Of an image; in the pool it ends elsewhere.
inline uint64_t ImageEnd(const ImageExtent& extent) { return extent.image_offset + extent.extent.bytes; }
// The extent that holds the image's byte at `offset`, or the first one behind it. `extents` are in the order
// of the image, as below.
std::vector<ImageExtent>::const_iterator ExtentAt(const std::vector<ImageExtent>& extents, uint64_t offset);
// The image's granules among `wanted` that the extents do not hold, in ascending order.
std::vector<GranuleRange> Missing(const std::vector<GranuleRange>& wanted,
                                  const std::vector<ImageExtent>& extents);
// Gives the image's granules `places` those of the pool, in order. REQUIRES: both are equally many.
std::vector<ImageExtent> Lay(const std::vector<GranuleRange>& places, const std::vector<GranuleRange>& pool);
// What of the extents lies in the image's granules `wanted`, in order.
std::vector<ImageExtent> Cut(const std::vector<ImageExtent>& extents,
                             const std::vector<GranuleRange>& wanted);
// Puts extents of one image in its order, and joins those that touch in the image and in one segment.
std::vector<ImageExtent> Joined(std::vector<ImageExtent> extents, uint64_t segment_bytes);

}  // namespace tensorcast
