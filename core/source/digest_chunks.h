// Reads an image from a source and digests it chunk by chunk, outside an ingest: to make a manifest of it, or
// to compare it with the one that it should have. No copy of the image is kept.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/request_context.h"
#include "core/artifact/digest.h"
#include "core/artifact/layout.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

// Calls `take` once for each chunk, from several threads at once (as many as the source wants fetches) and in
// no certain order. It ends early, with OK, where `take` returns false, and with the source's error where
// that comes first; no call is under way when it returns.
absl::Status DigestChunks(const RequestContext& context, ChunkSource& source, const ImageLayout& layout,
                          bool with_blake3,
                          absl::FunctionRef<bool(uint32_t chunk, ChunkDigests digests)> take);

}  // namespace tensorcast
