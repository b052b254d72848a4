// A source of bytes that this process has mapped already: a replica of this node, a peer's pool, or memory
// that a client handed over for a put. Fetch copies and digests in one pass.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/source/chunk_source.h"

namespace tensorcast {

// Returns the memory of image bytes [offset, offset + bytes), in order. It is called only for available
// bytes.
// Thread-safe; copies of the function keep the memory alive.
using ImageSpans = std::function<std::vector<ConstHostSpan>(uint64_t offset, uint64_t bytes)>;

// Image bytes that lie side by side.
struct MappedPiece {
  uint64_t image_offset = 0;
  ConstHostSpan bytes;
};
// ImageSpans of an image that lies in `pieces`, which are in image order and do not overlap. Copies of the
// result hold `keep_alive`.
ImageSpans SpansOf(std::vector<MappedPiece> pieces, std::shared_ptr<void> keep_alive);

// `page_locked`: the image is page-locked memory of the device runtime, so that it can be copied from there
// to a device (ChunkSource::HostSpans).
std::unique_ptr<ChunkSource> MakeMappedSource(SourceInfo info, uint64_t image_bytes, ImageSpans image,
                                              int max_concurrency,
                                              std::shared_ptr<const Availability> availability,
                                              bool page_locked = false);

// The spans make up the image, in order. `keep_alive` is held as long as the source (a lease, a mapping).
// `availability`: the chunks that are there, if the image still fills; no other chunks are read.
std::unique_ptr<ChunkSource> MakeMappedSource(SourceInfo info, const std::vector<ConstHostSpan>& image,
                                              std::shared_ptr<void> keep_alive, int max_concurrency,
                                              std::shared_ptr<const Availability> availability = nullptr);

}  // namespace tensorcast
