// The source of a put: a client streams its image through a ring (core/handles/put_ring.h), except the parts
// that the client hands over.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/handles/put_ring.h"
#include "core/source/chunk_source.h"
#include "core/source/mapped_source.h"

namespace tensorcast::daemon {

// Parts of an image that are in memory which no client can write to: in the image's order, without overlap.
// They are copied from there.
struct HeldBytes {
  std::vector<MappedPiece> pieces;
  std::shared_ptr<void> keep_alive;
};

// `ring` is an offer's: it ends with the source. A fetch copies out of the ring and digests the copy: the
// client can change what lies in the ring at any time. Errors as PutRing::Await.
std::unique_ptr<ChunkSource> MakeRingSource(std::shared_ptr<PutRing> ring, uint64_t image_bytes,
                                            HeldBytes held = {});

}  // namespace tensorcast::daemon
