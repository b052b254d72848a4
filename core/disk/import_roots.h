// The folders (roots) beneath which a daemon may open files for clients.
//
// First ImportRoots resolves a path with all its links; the real path must lie beneath a root. Then
// ImportRoots opens the real path, one component after the other; a link in the real path is an error. So a
// process that swaps folders and links between the two steps cannot reach a file outside the roots. The
// reader uses only the descriptor, never the path. If a root is mounted or replaced later, the new folder is
// used.
//
// Only regular files are opened for reading.
//
// Immutable; thread-safe.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/source/object_reader.h"

namespace tensorcast {

class ImportRoots final : public ObjectStore {
 public:
  // Without folders, no file may be opened. An error if one of the folders does not exist.
  //
  // A file that is outside the roots, missing, or not readable always gives the same PERMISSION_DENIED, so
  // that a client learns nothing about the file; the log has the reason. UNAVAILABLE, also without the
  // reason, if a mount went away or does not answer.
  static absl::StatusOr<ImportRoots> Beneath(const std::vector<std::string>& folders);

  // Allows all files that this process may read, for tools that run with their caller's rights. Errors have
  // the reason: NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT.
  static ImportRoots Everything();

  ImportRoots() = default;  // nothing may be opened

  // The file or folder at `path`. The URI of a file is its real path. INVALID_ARGUMENT for another kind of
  // file, and for a path that is relative (except with Everything()), empty, too long, or has a NUL byte.
  //
  // A folder's files may be links, but a link to a file outside the folder is refused (INVALID_ARGUMENT from
  // Everything(), else PERMISSION_DENIED). There is one exception, for the download cache of a model hub:
  // links from <model>/snapshots/<revision>/ into <model>/blobs/ are followed.
  //
  // Find first syncs to disk what was written through memory mappings of the file (WriteOutMappedPages). This
  // may take long. CANCELLED or DEADLINE_EXCEEDED if the context ends first. Open of a returned folder
  // does the same for the opened file.
  absl::StatusOr<FoundObject> Find(const RequestContext& context, const std::string& path) const override;

  // Opens, by its real path, a file that was opened before. FAILED_PRECONDITION if the file has changed
  // since.
  absl::StatusOr<std::shared_ptr<ObjectReader>> OpenAgain(const RequestContext& context,
                                                          const ObjectIdentity& file) const override;

 private:
  class Folder;

  absl::StatusOr<std::string> Resolve(const std::string& path) const;
  absl::StatusOr<std::shared_ptr<ObjectReader>> OpenFile(const RequestContext& context,
                                                         const std::string& path,
                                                         std::span<const std::string> folders) const;
  absl::StatusOr<std::shared_ptr<ObjectReader>> OpenRegular(const std::string& path, const std::string& real,
                                                            int entry) const;
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) const;
  absl::StatusOr<std::vector<std::string>> ListBelow(const std::string& folder, size_t max) const;
  absl::Status Refuse(const std::string& path, const absl::Status& why) const;

  std::vector<std::string> folders_;  // real paths
  bool tells_why_ = false;
};

}  // namespace tensorcast
