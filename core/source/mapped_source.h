// A source of bytes that are mapped into this process: a replica of this node, a peer's pool, or memory that
// a client puts. Fetch copies and digests in one pass.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/source/chunk_source.h"

namespace tensorcast {

// Returns the memory of image bytes [offset, offset + bytes), in order. It is called only for available
// bytes. Thread-safe; each copy of the function keeps the memory alive.
using ImageSpans = std::function<std::vector<ConstHostSpan>(uint64_t offset, uint64_t bytes)>;

// A range of image bytes that is contiguous in memory.
struct MappedPiece {
  uint64_t image_offset = 0;
  ConstHostSpan bytes;
};
// ImageSpans of an image that consists of `pieces`. REQUIRES: the pieces are in image order, are not empty,
// and cover all available bytes without overlaps. Copies of the result hold `keep_alive`.
ImageSpans SpansOf(std::vector<MappedPiece> pieces, std::shared_ptr<void> keep_alive);

// `availability` has the chunks that are present; the source reads only these chunks. Null: all chunks are
// present. With `page_locked` the image is in page-locked memory of the device runtime and can be copied to a
// device without a fetch (ChunkSource::HostSpans).
std::unique_ptr<ChunkSource> MakeMappedSource(SourceInfo info, uint64_t image_bytes, ImageSpans image,
                                              int max_concurrency,
                                              std::shared_ptr<const Availability> availability,
                                              bool page_locked = false);

// The spans, in order, are the image. The source holds `keep_alive` (a lease, a mapping) during its lifetime.
std::unique_ptr<ChunkSource> MakeMappedSource(SourceInfo info, const std::vector<ConstHostSpan>& image,
                                              std::shared_ptr<void> keep_alive, int max_concurrency,
                                              std::shared_ptr<const Availability> availability = nullptr);

}  // namespace tensorcast
