#include "core/safetensors/output_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/posix/state_files.h"
#include "base/status.h"

namespace tensorcast {
namespace {

// How much is written before the kernel is asked to begin writing it out, so that the final sync finds little
// left; and how much of that sync is waited for at once.
constexpr uint64_t kWriteBehindBytes = uint64_t{64} << 20;
// The size of one system call. Between two the context is checked, so a cancelled writer ends soon.
constexpr uint64_t kWriteBytes = uint64_t{16} << 20;
constexpr uint64_t kReserveBytes = uint64_t{1} << 30;

constexpr std::string_view kTemporary = ".tmp-";

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

std::string PathOf(int fd) { return absl::StrCat("/proc/self/fd/", fd); }

bool IsLinked(int fd) {
  struct stat info{};
  return fstat(fd, &info) == 0 && info.st_nlink > 0;
}

bool IsAlive(pid_t pid) { return kill(pid, 0) == 0 || errno == EPERM; }

// `name` is a temporary file of `base` and its writer no longer runs here. (One in another pid namespace, or
// on another host, still has its lock.)
bool IsAbandoned(std::string_view name, std::string_view base) {
  if (!absl::ConsumePrefix(&name, base) || !absl::ConsumePrefix(&name, kTemporary)) return false;
  const std::pair<std::string_view, std::string_view> numbers = absl::StrSplit(name, absl::MaxSplits('-', 1));
  pid_t pid = 0;
  int attempt = 0;
  return absl::SimpleAtoi(numbers.first, &pid) && absl::SimpleAtoi(numbers.second, &attempt) && pid > 0 &&
         !IsAlive(pid);
}

void RemoveUnlessLocked(int folder, const char* name) {
  const int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return;
  struct stat info{};
  if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0) {
    unlinkat(folder, name, 0);
  }
  close(fd);
}

// Removes what killed writers to this path left. Errors are ignored: what stays hinders no other writer.
void RemoveAbandoned(const std::string& path) {
  DIR* folder = opendir(FolderOf(path).c_str());
  if (folder == nullptr) return;
  const std::string base = path.substr(path.rfind('/') + 1);
  while (const dirent* entry = readdir(folder)) {
    if (IsAbandoned(entry->d_name, base)) RemoveUnlessLocked(dirfd(folder), entry->d_name);
  }
  closedir(folder);
}

}  // namespace

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  if (!temporary_.empty()) unlink(temporary_.c_str());
  close(fd_);
}

absl::Status OutputFile::Check() const { return context_.Check(absl::StrCat("write ", path_)); }

absl::Status OutputFile::Create(uint64_t bytes) {
  // Renaming over a device or a FIFO would remove it from the system.
  struct stat info;
  if (stat(path_.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("write ", path_, ": the path is not a regular file; choose another path"));
  }
  // Before room is reserved: the rest of a killed writer may be as large as this file.
  RemoveAbandoned(path_);
  TC_RETURN_IF_ERROR(Open());
  return Reserve(bytes);
}

absl::Status OutputFile::Open() {
  const std::string folder = FolderOf(path_);
  // A file without a name goes with its descriptor, also where this process is killed.
  fd_ = open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  // It is given its name through /proc.
  if (fd_ >= 0 && access(PathOf(fd_).c_str(), F_OK) != 0) close(std::exchange(fd_, -1));
  if (fd_ < 0) return OpenNamed();
  (void)flock(fd_, LOCK_EX | LOCK_NB);  // for the instant before it is renamed, where it has to be
  return absl::OkStatus();
}

absl::Status OutputFile::OpenNamed() {
  for (int attempt = 0; fd_ < 0; ++attempt) {
    const std::string name = absl::StrCat(path_, kTemporary, getpid(), "-", attempt);
    fd_ = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0 && errno == EEXIST) continue;
    if (fd_ < 0) return ErrnoStatus(errno, "create", path_);
    // Between open and flock another writer may take this file for an abandoned one. That writer then holds
    // the lock, or has removed the file already. Both show here, and the next name is tried.
    if (flock(fd_, LOCK_EX | LOCK_NB) == 0 ? !IsLinked(fd_) : errno == EWOULDBLOCK) {
      close(std::exchange(fd_, -1));
      continue;
    }
    temporary_ = name;
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Reserve(uint64_t bytes) {
  // Room is reserved first, so that a full disk is told before minutes of writing. In steps, between which
  // the file can be given up.
  for (uint64_t at = 0; at < bytes; at += kReserveBytes) {
    TC_RETURN_IF_ERROR(Check());
    const uint64_t count = std::min(kReserveBytes, bytes - at);
    if (fallocate(fd_, 0, static_cast<off_t>(at), static_cast<off_t>(count)) == 0) continue;
    if (errno != ENOSPC && errno != EDQUOT && errno != EFBIG) break;  // it can't tell
    return ErrnoStatus(errno, absl::StrCat("reserve ", bytes, " bytes for"), path_);
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Append(ConstHostSpan piece) {
  if (piece.empty()) return absl::OkStatus();
  if (!pieces_.empty()) {
    iovec& last = pieces_.back();
    if (static_cast<const std::byte*>(last.iov_base) + last.iov_len == piece.data()) {
      last.iov_len += piece.size();
      return absl::OkStatus();
    }
  }
  if (pieces_.size() == IOV_MAX) TC_RETURN_IF_ERROR(Flush());
  pieces_.push_back({const_cast<std::byte*>(piece.data()), piece.size()});
  return absl::OkStatus();
}

absl::Status OutputFile::Flush() {
  for (size_t first = 0; first < pieces_.size();) {
    TC_RETURN_IF_ERROR(Check());
    const ssize_t count = WriteSome(first);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, "write", path_);
    first = Advance(first, static_cast<uint64_t>(count));
    BeginWriteBack(static_cast<uint64_t>(count));
  }
  pieces_.clear();
  return absl::OkStatus();
}

// Whole pieces from `first` on as far as kWriteBytes go, or the beginning of one that is larger.
ssize_t OutputFile::WriteSome(size_t first) {
  size_t end = first;
  for (uint64_t bytes = 0; end < pieces_.size(); ++end) {
    bytes += pieces_[end].iov_len;
    if (bytes > kWriteBytes) break;
  }
  if (end == first) return write(fd_, pieces_[first].iov_base, kWriteBytes);
  return writev(fd_, pieces_.data() + first, static_cast<int>(end - first));
}

// Drops the first `count` bytes of the pieces from `first` on; returns the first piece that has any left.
size_t OutputFile::Advance(size_t first, uint64_t count) {
  while (first < pieces_.size() && count >= pieces_[first].iov_len) count -= pieces_[first++].iov_len;
  if (count > 0) {
    pieces_[first].iov_base = static_cast<std::byte*>(pieces_[first].iov_base) + count;
    pieces_[first].iov_len -= count;
  }
  return first;
}

void OutputFile::BeginWriteBack(uint64_t count) {
  written_bytes_ += count;
  if (written_bytes_ - pushed_bytes_ < kWriteBehindBytes) return;
  // A hint: what it does not achieve, the sync at the end does.
  (void)sync_file_range(fd_, static_cast<off_t>(pushed_bytes_),
                        static_cast<off_t>(written_bytes_ - pushed_bytes_), SYNC_FILE_RANGE_WRITE);
  pushed_bytes_ = written_bytes_;
}

// Waits for the bytes piece by piece, since nothing ends a sync of the whole before its time.
absl::Status OutputFile::Sync() {
  for (uint64_t at = 0; at < written_bytes_; at += kWriteBehindBytes) {
    TC_RETURN_IF_ERROR(Check());
    // It may not be able to (ESPIPE, ENOSYS); but a failed write that it tells of is not told again by fsync.
    if (sync_file_range(fd_, static_cast<off_t>(at), static_cast<off_t>(kWriteBehindBytes),
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER) !=
            0 &&
        (errno == EIO || errno == ENOSPC || errno == EDQUOT)) {
      return ErrnoStatus(errno, "sync", path_);
    }
  }
  if (fsync(fd_) != 0) return ErrnoStatus(errno, "sync", path_);
  return Check();
}

// Gives a nameless file a name. link(2) does not replace an existing file, so where one is at the path this
// file gets a temporary name, and Publish renames it.
absl::Status OutputFile::Name() {
  const std::string self = PathOf(fd_);
  if (linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path_.c_str(), AT_SYMLINK_FOLLOW) == 0) {
    return absl::OkStatus();
  }
  for (int attempt = 0; errno == EEXIST; ++attempt) {
    const std::string name = absl::StrCat(path_, kTemporary, getpid(), "-", attempt);
    if (linkat(AT_FDCWD, self.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) != 0) continue;
    temporary_ = name;
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, "create", path_);
}

absl::Status OutputFile::Publish() {
  TC_RETURN_IF_ERROR(Flush());
  TC_RETURN_IF_ERROR(Sync());
  // The bytes are on the disk before the name is: a reader after a crash finds the old file or the whole new
  // one.
  if (temporary_.empty()) TC_RETURN_IF_ERROR(Name());
  if (!temporary_.empty() && rename(temporary_.c_str(), path_.c_str()) != 0) {
    return ErrnoStatus(errno, "rename to", path_);
  }
  temporary_.clear();
  if (close(std::exchange(fd_, -1)) != 0) return ErrnoStatus(errno, "close", path_);
  return SyncFolder(FolderOf(path_));
}

}  // namespace tensorcast
