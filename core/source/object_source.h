// A source of an image in objects: the files that an artifact is imported from, or the packed file of the
// disk tier. Small tensors that lie close together share one read. Unaligned data is read as an aligned
// superset.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/source/chunk_source.h"
#include "core/source/object_extents.h"
#include "core/source/object_reader.h"

namespace tensorcast {

// INVALID_ARGUMENT when the extents do not fit the objects or the image. If `info` has no name, its type,
// lane and name are taken from the objects. An object that changes ends a fetch with FAILED_PRECONDITION.
absl::StatusOr<std::unique_ptr<ChunkSource>> MakeObjectSource(ObjectReaders objects,
                                                              std::vector<ObjectExtent> extents,
                                                              uint64_t image_bytes, SourceInfo info = {});

}  // namespace tensorcast
