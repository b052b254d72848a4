// A source with its image in objects: the files from which an artifact is imported, or the packed file of the
// disk tier. Tensors that are small and close together share one read.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/source/chunk_source.h"
#include "core/source/object_extents.h"
#include "core/source/object_reader.h"

namespace tensorcast {

// INVALID_ARGUMENT if the extents do not fit the objects or the image. If `info` has no name, its type, lane
// and name are taken from the objects. A fetch from an object that has changed fails with
// FAILED_PRECONDITION.
absl::StatusOr<std::unique_ptr<ChunkSource>> MakeObjectSource(ObjectReaders objects,
                                                              std::vector<ObjectExtent> extents,
                                                              uint64_t image_bytes, SourceInfo info = {});

}  // namespace tensorcast
