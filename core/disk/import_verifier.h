// Compares bytes with a manifest, without keeping them. An import uses it to read its files a second time and
// to compare each chunk with the first reading.
//
// A file's size and mtime show every write(2) that ends before the last chunk was read, but not all stores to
// a mapped file (README.md has the details). If all chunks are equal in both passes, the import has read the
// file as it was at one moment between the passes, whatever wrote to it.
//
// Functions only, thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/artifact/manifest.h"
#include "core/source/chunk_source.h"
#include "core/source/object_extents.h"
#include "core/source/object_reader.h"

namespace tensorcast {

// The first chunk found that does not match the manifest; nullopt when all chunks match. Errors are the
// source's. Starts a few threads.
absl::StatusOr<std::optional<uint32_t>> FindDifferentChunk(const RequestContext& context, ChunkSource& source,
                                                           const Manifest& manifest);

// `manifest` was made by the first pass over these extents of the objects. ABORTED, naming chunk and object,
// when a chunk differs now; otherwise the errors of a source that reads objects. Starts a few threads.
absl::Status CompareAgain(const RequestContext& context, const ObjectReaders& objects,
                          const std::vector<ObjectExtent>& extents, const Manifest& manifest);

}  // namespace tensorcast
