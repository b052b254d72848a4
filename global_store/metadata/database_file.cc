#include "global_store/metadata/database_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tensorcast::global_store {
namespace {

// Far behind the bytes that SQLite locks, which begin at 1 GiB.
constexpr off_t kLockedByte = off_t{1} << 62;

constexpr mode_t kMode = 0600;  // SQLite gives its log and index the same

}  // namespace

absl::StatusOr<DatabaseFile> DatabaseFile::Open(const std::string& path) {
  DatabaseFile file(UniqueFd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kMode)));
  if (!file.fd_) return ErrnoStatus(errno, "open", path);
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = kLockedByte;
  lock.l_len = 1;
  // Of the open file description: an ordinary lock of the process would go when SQLite closes any descriptor
  // of the file.
  if (fcntl(file.fd_.get(), F_OFD_SETLK, &lock) != 0) {
    if (errno != EAGAIN && errno != EACCES) return ErrnoStatus(errno, "lock", path);
    return absl::AlreadyExistsError(absl::StrCat("lock ", path,
                                                 ": another global store uses this database; stop that "
                                                 "global store, or set another global_store.metadata_path"));
  }
  struct stat now{};
  if (fstat(file.fd_.get(), &now) != 0) return ErrnoStatus(errno, "stat", path);
  file.watched_.push_back({.path = path, .device = now.st_dev, .inode = now.st_ino});
  return file;
}

absl::Status DatabaseFile::Watch(const std::string& path) {
  struct stat now{};
  if (stat(path.c_str(), &now) != 0) return ErrnoStatus(errno, "stat", path);
  watched_.push_back({.path = path, .device = now.st_dev, .inode = now.st_ino});
  return absl::OkStatus();
}

// What was removed or replaced is still written to by this process, and is gone with it: a commit would be
// acknowledged and lost.
absl::Status DatabaseFile::Check() const {
  for (const Watched& file : watched_) {
    struct stat now{};
    const bool there = stat(file.path.c_str(), &now) == 0;
    if (there && now.st_dev == file.device && now.st_ino == file.inode) continue;
    return absl::DataLossError(absl::StrCat("use the metadata database ", file.path, ": the file was ",
                                            there ? "replaced" : "removed",
                                            " while this global store ran, so the global store can write no "
                                            "change; put the file back, or start the "
                                            "global store again with a backup"));
  }
  return absl::OkStatus();
}

}  // namespace tensorcast::global_store
