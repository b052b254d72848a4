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

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "core/disk/disk_source.h"

namespace tensorcast {

class ImportRoots {
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

  struct Found {
    std::string path;  // without links
    bool is_folder = false;
    OpenedFile file;  // unless it is a folder
  };
  // The file or folder at `path`. INVALID_ARGUMENT for another kind, or a path that is not absolute (roots of
  // Everything() take relative ones).
  //
  // What a process wrote to the file through a mapping is written out first, which takes as long as the disk
  // does; CANCELLED and DEADLINE_EXCEEDED when the context ends meanwhile. OpenFile does the same.
  absl::StatusOr<Found> Find(const RequestContext& context, const std::string& path) const;

  // The regular file at `path`, which must lie in one of `folders`: real paths, as Find gives them.
  // INVALID_ARGUMENT, where the roots tell things apart, for one that lies elsewhere.
  absl::StatusOr<OpenedFile> OpenFile(const RequestContext& context, const std::string& path,
                                      std::span<const std::string> folders) const;

  // Whether the folder, a real path as Find gives it, has an entry of that name, of any kind.
  absl::StatusOr<bool> Has(const std::string& folder, const std::string& name) const;

  // A file that was opened before, by its real path: FAILED_PRECONDITION when its identity changed.
  absl::StatusOr<OpenedFile> OpenAgain(const FileIdentity& file) const;

  // Whether that very file can be opened again by the path in its identity.
  bool LeadTo(const OpenedFile& file) const;

 private:
  absl::StatusOr<std::string> Resolve(const std::string& path) const;
  absl::StatusOr<OpenedFile> OpenRegular(const std::string& path, const std::string& real, int entry) const;
  absl::Status Refuse(const std::string& path, const absl::Status& why) const;

  std::vector<std::string> folders_;  // real paths
  bool tells_why_ = false;
};

}  // namespace tensorcast
