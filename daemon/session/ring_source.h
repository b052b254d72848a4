// The source of a put: the client streams the image through a ring (core/handles/put_ring.h), except for the
// parts that it hands over.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/handles/put_ring.h"
#include "core/source/chunk_source.h"
#include "core/source/mapped_source.h"

namespace tensorcast::daemon {

// Parts of an image that the daemon copies from memory that no client can write to. The pieces are in the
// image's order and do not overlap. `keep_alive` owns their memory.
struct HeldBytes {
  std::vector<MappedPiece> pieces;
  std::shared_ptr<void> keep_alive;
};

// `ring` comes from an offer. The source keeps `ring` until the source is destroyed. A fetch copies out of
// the ring and digests the copy, since the client can change the ring at any time. Errors are those of
// PutRing::Await.
std::unique_ptr<ChunkSource> MakeRingSource(std::shared_ptr<PutRing> ring, uint64_t image_bytes,
                                            HeldBytes held = {});

}  // namespace tensorcast::daemon
