// The folders beneath which files may be opened for others, and the only way in which their files are opened.
//
// A path is resolved first, links and all, and the real path must lie beneath a root. Then the file is opened
// by that real path, one component after the other; a link anywhere on the way is an error. A process that
// swaps folders and links between the two steps wins nothing: what is opened lies where the real path says
// (as with openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS), which not every sandbox lets through). Afterwards
// only the descriptor counts, never the path again. A root that is mounted or replaced later is the one that
// counts from then on.
//
// Nothing but regular files is ever opened for reading: a FIFO blocks no thread, a device is not
// touched.
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
  // Without a folder nothing may be opened. An error when one of them is not there.
  //
  // Refusals do not differ: PERMISSION_DENIED in the same words, whether a file is
  // outside, not there or not readable, so that a client learns nothing of such files. The log says which.
  // UNAVAILABLE, in words that tell no more, when a mount went away or does not answer: that says nothing of
  // the files on it.
  static absl::StatusOr<ImportRoots> Beneath(const std::vector<std::string>& folders);

  // All that this process may read, for tools with the rights of their caller. Errors say what is wrong:
  // NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT.
  static ImportRoots Everything();

  ImportRoots() = default;  // nothing may be opened

  // The file or folder at `path`. The URI of a file is its real path. INVALID_ARGUMENT for another kind, or a
  // path that is not absolute (roots of Everything() take relative ones).
  //
  // A folder's files may be links, but not to what lies outside of it: INVALID_ARGUMENT, where the roots tell
  // things apart. In the download cache of a model hub, where <model>/snapshots/<revision>/ holds nothing but
  // links into <model>/blobs/, these are followed.
  //
  // What a process wrote to the file through a mapping is written out first, which takes as long as the disk
  // does; CANCELLED and DEADLINE_EXCEEDED when the context ends meanwhile. A folder's Open does the same.
  absl::StatusOr<FoundObject> Find(const RequestContext& context, const std::string& path) const override;

  // A file that was opened before, by its real path.
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
