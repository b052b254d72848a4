// A source whose bytes are already mapped in this process: a replica of this node, a peer's pool, memory that
// a client handed over for a put. Fetch copies and digests in one pass.
#pragma once

#include <memory>
#include <vector>

#include "core/source/chunk_source.h"

namespace tensorcast {

// The spans make up the image, in order. `keep_alive` is held as long as the source (a lease, a mapping).
std::unique_ptr<ChunkSource> MakeMappedSource(SourceInfo info, const std::vector<ConstHostSpan>& image,
                                              std::shared_ptr<void> keep_alive, int max_concurrency);

}  // namespace tensorcast
