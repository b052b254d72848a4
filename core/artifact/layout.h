// The image's layout: which tensor lies where, and how the image is cut into chunks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/tensor/tensor.h"

namespace tensorcast {

inline constexpr uint64_t kTensorAlignment = 256;
inline constexpr uint64_t kDefaultChunkBytes = uint64_t{16} << 20;

struct ByteRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// Tensors in image order, each at the first aligned offset after the one before; zero bytes between them; the
// image ends at the aligned end of the last tensor. A value; immutable once valid.
struct ImageLayout {
  std::vector<Tensor> tensors;
  uint64_t image_bytes = 0;
  uint64_t chunk_bytes = kDefaultChunkBytes;

  uint32_t chunk_count() const;
  // REQUIRES: chunk < chunk_count(). The last chunk may be shorter.
  ByteRange chunk(uint32_t chunk) const;

  friend bool operator==(const ImageLayout&, const ImageLayout&) = default;
};

// Sets every tensor's offset and the image's size from names, types, shapes and order. INVALID_ARGUMENT for
// a repeated or non-UTF-8 name, a size that does not follow from dtype and shape, an image past 2^63
// bytes, a chunk size that is not a positive multiple of 4096, or more than 2^32-1 chunks.
absl::Status AssignOffsets(ImageLayout& layout);

// The same checks, and that the offsets are those that AssignOffsets would give.
absl::Status ValidateLayout(const ImageLayout& layout);

}  // namespace tensorcast
