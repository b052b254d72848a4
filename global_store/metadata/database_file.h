// The file of a database: locked for one process, and watched. Private to this folder. Thread-compatible.
//
// The lock is on the file itself: an open-file-description lock on a byte that SQLite does not use. So it
// excludes a second process that opens the file by any name: a symbolic link, a hard link, another mount. The
// lock ends with the process.
//
// Writes to an open file that was removed or replaced are lost. Therefore this class remembers the identities
// of the database's files, and compares them with the files that their names lead to now.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"

namespace tensorcast::global_store {

class DatabaseFile {
 public:
  // Opens and locks the file; creates an empty one if it is missing. ALREADY_EXISTS when another process has
  // locked it. Closing any descriptor of a file drops the locks that SQLite has on it: call Open before
  // SQLite opens the file, and destroy this object after SQLite closed it.
  static absl::StatusOr<DatabaseFile> Open(const std::string& path);

  // From now on Check also compares this file. NOT_FOUND when it does not exist.
  absl::Status Watch(const std::string& path);

  // DATA_LOSS when a name no longer leads to the file that Open or Watch found.
  absl::Status Check() const;

 private:
  struct Watched {
    std::string path;
    dev_t device;
    ino_t inode;
  };
  explicit DatabaseFile(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;  // holds the lock
  std::vector<Watched> watched_;
};

}  // namespace tensorcast::global_store
