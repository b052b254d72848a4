// The image's layout: the offset of each tensor, and the division of the image into chunks. Value types and
// pure functions; all sizes and offsets are in bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/byte_range.h"
#include "core/tensor/tensor.h"

namespace tensorcast {

inline constexpr uint64_t kTensorAlignment = 256;
inline constexpr uint64_t kMinChunkBytes = uint64_t{1} << 20;
inline constexpr uint64_t kMaxChunkBytes = uint64_t{16} << 20;

// The chunk size of an image of `image_bytes`: 2^floor(log2(image_bytes / 256)), at least kMinChunkBytes and
// at most kMaxChunkBytes.
uint64_t ChunkBytesOf(uint64_t image_bytes);

// The number of chunks of `chunk_bytes` in an image; the last one may be shorter. REQUIRES: chunk_bytes > 0.
uint32_t ChunkCountOf(uint64_t image_bytes, uint64_t chunk_bytes);

// Tensors in image order. Each tensor begins at the first multiple of kTensorAlignment at or after the end of
// the previous tensor; the bytes between the two are zero. The image ends at the first such multiple at or
// after the end of the last tensor.
struct ImageLayout {
  std::vector<Tensor> tensors;
  uint64_t image_bytes = 0;
  uint64_t chunk_bytes = kMinChunkBytes;  // ChunkBytesOf(image_bytes); tests may use another size

  uint32_t chunk_count() const { return ChunkCountOf(image_bytes, chunk_bytes); }
  // REQUIRES: chunk < chunk_count(). The last chunk may be shorter.
  ByteRange chunk(uint32_t chunk) const;

  friend bool operator==(const ImageLayout&, const ImageLayout&) = default;
};

// Sets every tensor's offset, the image size and the chunk size. INVALID_ARGUMENT for a repeated or non-UTF-8
// name, an `nbytes` that does not follow from dtype and shape, an image larger than 2^63 - 256 bytes, or more
// than 2^32-1 chunks; the layout is then unchanged.
absl::Status AssignOffsets(ImageLayout& layout);

// Makes the checks of AssignOffsets, and checks that AssignOffsets would set the same offsets and the same
// image size. The chunk size may be any positive multiple of 4096; the manifest checks the exact size.
absl::Status ValidateLayout(const ImageLayout& layout);

// Whether both describe the same image; chunk sizes may differ.
bool SameImage(const ImageLayout& a, const ImageLayout& b);

// Padding: the bytes of an image that belong to no tensor. They must be zero.

// The parts of `range` between tensors and behind the last tensor, in order. REQUIRES: a valid layout.
std::vector<ByteRange> PaddingIn(const ImageLayout& layout, ByteRange range);

// INVALID_ARGUMENT if a byte of padding is not zero; the message names the first such byte. `spans` are the
// bytes of `range`.
absl::Status CheckPadding(const ImageLayout& layout, ByteRange range,
                          std::span<const std::span<std::byte>> spans);

// INVALID_ARGUMENT for a chunk size that is not a positive multiple of 4096, or that divides the image into
// more than 2^32-1 chunks.
absl::Status CheckChunkBytes(uint64_t chunk_bytes, uint64_t image_bytes);

}  // namespace tensorcast
