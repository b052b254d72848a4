// The source of a put's image: a ring that the client fills (core/handles/put_ring.h), and parts in memory
// that the client handed over.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/handles/put_ring.h"
#include "core/source/chunk_source.h"
#include "core/source/mapped_source.h"

namespace tensorcast::daemon {

// Parts of an image in memory that no client can change. The pieces are in the image's order and do not
// overlap. `keep_alive` owns the memory.
struct HeldBytes {
  std::vector<MappedPiece> pieces;
  std::shared_ptr<void> keep_alive;
};

// `ring` comes from an offer. The source keeps `ring` until the source is destroyed. Errors are those of
// PutRing::Await.
std::unique_ptr<ChunkSource> MakeRingSource(std::shared_ptr<PutRing> ring, uint64_t image_bytes,
                                            HeldBytes held = {});

}  // namespace tensorcast::daemon
