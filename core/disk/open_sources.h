// The factories of disk_source.h, with the system calls to be given: for tests that make them fail. Internal
// to this folder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/disk/disk_source.h"
#include "core/disk/file_io.h"

namespace tensorcast {

// `io` must outlive the source.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenFileSourceWith(FileIo* io, std::vector<OpenedFile> files,
                                                                std::vector<FileExtent> extents,
                                                                uint64_t image_bytes,
                                                                const DiskSourceOptions& options);
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenPackedSourceWith(FileIo* io, std::string name, int fd,
                                                                  uint64_t image_offset, uint64_t image_bytes,
                                                                  std::shared_ptr<void> keep_alive,
                                                                  const DiskSourceOptions& options);

}  // namespace tensorcast
