// Sources that read files with direct I/O, in the aligned superset of what is asked for: the packed files of
// the disk tier, and the files that an artifact was imported from. Falls back to buffered reads where the
// file system has no direct I/O (tmpfs), or the page cache already holds the file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"
#include "core/source/chunk_source.h"

namespace tensorcast {

// A run of image bytes that lies contiguously in a file. Image bytes that no extent covers are zero.
struct FileExtent {
  uint32_t file = 0;  // index into the list of files
  uint64_t file_offset = 0;
  uint64_t image_offset = 0;
  uint64_t bytes = 0;
};

// A file as it was when it was first looked at. A source fails when its size or mtime is no longer that.
struct FileIdentity {
  std::string path;
  uint64_t bytes = 0;
  int64_t mtime_ns = 0;

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

// The same file, open for reading. What is read is read through the descriptor; the path is for messages, and
// for those who open it again later (import_roots.h).
struct OpenedFile {
  FileIdentity identity;
  UniqueFd fd;
};

struct DiskSourceOptions {
  int max_concurrency = 4;         // reads in flight
  uint64_t read_bytes = 4u << 20;  // of one read
  TraceContext span = {};          // as in SourceInfo
  TraceContext made_by = {};
};

// Checks every file against its identity: FAILED_PRECONDITION when it changed.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenFileSource(std::vector<OpenedFile> files,
                                                            std::vector<FileExtent> extents,
                                                            uint64_t image_bytes,
                                                            const DiskSourceOptions& options = {});

// Reads a packed file's image through a descriptor that the caller keeps open with `keep_alive`.
absl::StatusOr<std::unique_ptr<ChunkSource>> OpenPackedSource(std::string name, int fd, uint64_t image_offset,
                                                              uint64_t image_bytes,
                                                              std::shared_ptr<void> keep_alive,
                                                              const DiskSourceOptions& options = {});

}  // namespace tensorcast
