// A source of bytes that are mapped in this process already: a replica of this node, a peer's pool, memory
// that a client handed over for a put. Fetch copies and digests in one pass.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/source/chunk_source.h"

namespace tensorcast {

// Where image bytes [offset, offset + bytes) are, in order; asked for those that are there. Thread-safe; its
// copies keep the memory.
using ImageSpans = std::function<std::vector<ConstHostSpan>(uint64_t offset, uint64_t bytes)>;

// Image bytes that lie side by side.
struct MappedPiece {
  uint64_t image_offset = 0;
  ConstHostSpan bytes;
};
// Of an image in pieces that stay where they are: in its order, without overlap. `keep_alive` is held as long
// as its copies.
ImageSpans SpansOf(std::vector<MappedPiece> pieces, std::shared_ptr<void> keep_alive);

// `page_locked`: the image is memory that the devices' runtime knows as such, and may be copied to one from
// there (ChunkSource::HostSpans).
std::unique_ptr<ChunkSource> MakeMappedSource(SourceInfo info, uint64_t image_bytes, ImageSpans image,
                                              int max_concurrency,
                                              std::shared_ptr<const Availability> availability,
                                              bool page_locked = false);

// The spans make up the image, in order. `keep_alive` is held as long as the source (a lease, a mapping).
// `availability`: which of it is there, where it fills yet; the rest is not read.
std::unique_ptr<ChunkSource> MakeMappedSource(SourceInfo info, const std::vector<ConstHostSpan>& image,
                                              std::shared_ptr<void> keep_alive, int max_concurrency,
                                              std::shared_ptr<const Availability> availability = nullptr);

}  // namespace tensorcast
