// A source of an image that lies in objects: the files that an artifact is imported from, or the packed file
// of the disk tier. Small tensors that lie close together share one read; what does not lie aligned is read
// in the aligned superset.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/source/chunk_source.h"
#include "core/source/object_extents.h"
#include "core/source/object_reader.h"

namespace tensorcast {

// INVALID_ARGUMENT when the extents do not fit the objects or the image. Where `info` has no name, its type,
// lane and name are those of the objects. An object that changes ends a fetch with FAILED_PRECONDITION.
absl::StatusOr<std::unique_ptr<ChunkSource>> MakeObjectSource(ObjectReaders objects,
                                                              std::vector<ObjectExtent> extents,
                                                              uint64_t image_bytes, SourceInfo info = {});

}  // namespace tensorcast
