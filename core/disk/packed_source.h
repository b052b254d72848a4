// A source with its image in a packed file of the disk tier (FORMAT.md).
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "core/disk/file_reader.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

// Reads through a descriptor that `keep_alive` keeps open. Sets type and lane of `info`. INVALID_ARGUMENT if
// the file is shorter than its image.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenPackedSource(SourceInfo info, int fd, uint64_t image_offset,
                                                              uint64_t image_bytes,
                                                              std::shared_ptr<void> keep_alive,
                                                              FileReaderOptions options = {});

}  // namespace tensorcast
