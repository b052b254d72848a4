// Sources that read files with direct I/O, in the aligned superset of what is asked for: the packed files of
// the disk tier, and the files that an artifact was imported from. Falls back to buffered reads where the
// file system has no direct I/O (tmpfs), or the page cache already holds the file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/disk/file_io.h"
#include "core/disk/object_extents.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

struct DiskSourceOptions {
  int max_concurrency = 4;         // reads in flight
  uint64_t read_bytes = 4u << 20;  // of one read
  std::string grant_id = {};       // this and the next three as in SourceInfo
  TraceContext span = {};
  TraceContext made_by = {};
  std::string replica_id = {};
  FileIo* io = FileIo::System();  // must outlive the source
};

// Checks every file against its identity: FAILED_PRECONDITION when it changed.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenFileSource(std::vector<OpenedFile> files,
                                                            std::vector<ObjectExtent> extents,
                                                            uint64_t image_bytes,
                                                            const DiskSourceOptions& options = {});

// Reads a packed file's image through a descriptor that the caller keeps open with `keep_alive`.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenPackedSource(std::string name, int fd, uint64_t image_offset,
                                                              uint64_t image_bytes,
                                                              std::shared_ptr<void> keep_alive,
                                                              const DiskSourceOptions& options = {});

}  // namespace tensorcast
