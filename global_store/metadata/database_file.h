// The file of a database, locked for one process. Private to this folder. Thread-compatible.
//
// The lock is on the file, not on its name: it also excludes a process that opens the file by a link or by
// another mount. The lock ends with the process.
//
// An open file that was removed or replaced loses all later writes. Check detects such a file.
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
  // Opens the file, or creates an empty file, and locks it. ALREADY_EXISTS: another process has locked the
  // file. Call Open before SQLite opens the file, and destroy this object after SQLite closed the file:
  // closing any descriptor of the file drops SQLite's locks on it.
  static absl::StatusOr<DatabaseFile> Open(const std::string& path);

  // Makes Check also compare this file. NOT_FOUND: the file does not exist.
  absl::Status Watch(const std::string& path);

  // DATA_LOSS: a path of Open or Watch now names another file, or no file.
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
