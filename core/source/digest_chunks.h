// Reads an image from a source and digests it chunk by chunk, outside an ingest: to make a manifest, or to
// compare the image with an expected manifest. Keeps no copy of the image.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/request_context.h"
#include "core/artifact/digest.h"
#include "core/artifact/layout.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

// Calls `take` for each chunk, on several threads (max_concurrency of the source) and in any order. Ends
// early with OK if `take` returns false, and with the source's error if a fetch fails. After DigestChunks
// returns, no call of `take` is running.
absl::Status DigestChunks(const RequestContext& context, ChunkSource& source, const ImageLayout& layout,
                          bool with_blake3,
                          absl::FunctionRef<bool(uint32_t chunk, ChunkDigests digests)> take);

}  // namespace tensorcast
