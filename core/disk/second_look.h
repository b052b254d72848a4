// Reads the files of an import a second time and compares each chunk with what was read the first time.
//
// A file's size and mtime tell of every write(2) that ends before the last chunk was read. They do not tell
// of all stores to a mapped file (README.md says which). Whatever wrote meanwhile: when all chunks are the
// same twice, what was read is the file as it was at one moment between the two passes.
//
// One owner; Compare may be called once and starts a few threads of its own.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/artifact/manifest.h"
#include "core/disk/disk_source.h"
#include "otel/api/request_context.h"

namespace tensorcast {

class SecondLook {
 public:
  // Of the same open files, though they be renamed or removed meanwhile: takes descriptors of its own.
  static absl::StatusOr<SecondLook> At(const std::vector<OpenedFile>& files, std::vector<FileExtent> extents);

  // `manifest` is what the first pass made of the files. ABORTED, naming chunk and file, when a chunk is not
  // the same; otherwise the errors of a source that reads files.
  absl::Status Compare(const RequestContext& context, const Manifest& manifest) &&;

 private:
  std::string FilesOf(const ByteRange& range) const;

  std::vector<OpenedFile> files_;
  std::vector<std::string> paths_;
  std::vector<FileExtent> extents_;
};

}  // namespace tensorcast
