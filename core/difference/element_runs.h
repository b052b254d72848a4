// The geometry of a difference: the widths of the image's elements and the division into chunks. Base and
// target must have the same geometry; the codec uses nothing else of their layouts. Value types and pure
// functions.
#pragma once

#include <cstdint>
#include <vector>

#include "base/byte_range.h"
#include "core/artifact/layout.h"

namespace tensorcast {

// A range of the image in which all elements have one width. Its begin and end are multiples of
// kTensorAlignment.
struct ElementRun {
  uint64_t offset = 0;  // in the image; in the chunk if RunsOf returned the run
  uint64_t bytes = 0;
  uint32_t width = 1;  // bytes of an element: 1, 2, 4 or 8
  friend bool operator==(const ElementRun&, const ElementRun&) = default;
};

// Immutable once made.
struct DifferenceGeometry {
  uint64_t image_bytes = 0;
  uint64_t chunk_bytes = kMinChunkBytes;
  std::vector<ElementRun> runs;  // in order, without gaps; neighbours differ in width

  uint32_t chunk_count() const;
  // REQUIRES: chunk < chunk_count(). The last chunk may be shorter.
  ByteRange chunk(uint32_t chunk) const;
  // The runs of one chunk, with offsets from the chunk's start.
  std::vector<ElementRun> RunsOf(uint32_t chunk) const;

  friend bool operator==(const DifferenceGeometry&, const DifferenceGeometry&) = default;
};

// The width in bytes by which a tensor's elements are compared: 1 for packed types and bytes, 4 for complex
// numbers of two floats, else the element's size.
uint32_t ElementWidth(DType dtype);

// The geometry of an image. A tensor's run includes the padding up to the next tensor. REQUIRES: a valid
// layout with chunks of at most 1 GiB.
DifferenceGeometry GeometryOf(const ImageLayout& layout);

}  // namespace tensorcast
