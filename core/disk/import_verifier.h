// Compares bytes with a manifest and keeps none of them. An import uses it to read its files a second time
// and compare each chunk with what was read the first time:
//
// A file's size and mtime tell of every write(2) that ends before the last chunk was read. They do not tell
// of all stores to a mapped file (README.md says which). Whatever wrote meanwhile: when all chunks are the
// same twice, what was read is the file as it was at one moment between the two passes.
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

// The first chunk found with bytes that are not the manifest's; nullopt when all chunks match. The
// source's errors. Starts a few threads of its own.
absl::StatusOr<std::optional<uint32_t>> FindDifferentChunk(const RequestContext& context, ChunkSource& source,
                                                           const Manifest& manifest);

// `manifest` is what the first pass made of these extents of the objects. ABORTED, naming chunk and object,
// when a chunk is not the same now; otherwise the errors of a source that reads objects. Starts a few threads
// of its own.
absl::Status CompareAgain(const RequestContext& context, const ObjectReaders& objects,
                          const std::vector<ObjectExtent>& extents, const Manifest& manifest);

}  // namespace tensorcast
