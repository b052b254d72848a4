// The file under a database: kept for one process, and watched. Private to this folder. Thread-compatible.
//
// The lock is on the file itself (an open file description's lock on a byte that SQLite does not use), so a
// second process is kept out by whatever name it comes: a symbolic or a hard link, another mount. It ends
// with the process, however that ends.
//
// A file that is removed or replaced while it is open takes what is written to it along. So what a database
// consists of is remembered as it was opened, and compared with what its names lead to now.
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
  // Creates an empty one where there is none. ALREADY_EXISTS when another process has it. Closing any
  // descriptor of a file drops the locks that SQLite has on it: open this before SQLite does, and close it
  // after.
  static absl::StatusOr<DatabaseFile> Open(const std::string& path);

  // From now on this file, too, belongs to the database. NOT_FOUND when there is none.
  absl::Status Watch(const std::string& path);

  // DATA_LOSS when a name no longer leads to the file that it led to.
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
