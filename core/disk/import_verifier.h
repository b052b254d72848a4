// Compares bytes with a manifest and drops the bytes. An import uses this to compare a second reading of its
// files with the first reading.
//
// A write through a memory mapping does not always change the file's times (README.md). If every chunk is
// equal in both readings, the file had this content at some moment between the readings.
//
// Stateless; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/byte_range.h"
#include "base/request_context.h"
#include "core/artifact/manifest.h"
#include "core/source/chunk_source.h"
#include "core/source/object_extents.h"
#include "core/source/object_reader.h"

namespace tensorcast {

// A chunk that does not match the manifest; nullopt if all chunks match. Errors are those of the source.
// Starts a few threads.
absl::StatusOr<std::optional<uint32_t>> FindDifferentChunk(const RequestContext& context, ChunkSource& source,
                                                           const Manifest& manifest);

// Describes, for messages, the objects that hold the bytes of the image's range: "a", "a and 2 other files",
// or "no file" if no object has bytes of the range.
std::string DescribeObjects(const ByteRange& range, const std::vector<ObjectExtent>& extents,
                            const ObjectReaders& objects);

// Reads these extents of the objects again; `manifest` is from the first reading. ABORTED, naming chunk and
// object, if a chunk differs now. Other errors come from reading the objects (core/source/object_reader.h).
// Starts a few threads.
absl::Status CompareAgain(const RequestContext& context, const ObjectReaders& objects,
                          const std::vector<ObjectExtent>& extents, const Manifest& manifest);

}  // namespace tensorcast
