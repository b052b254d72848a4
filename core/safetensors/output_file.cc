#include "core/safetensors/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/status/status.h"

namespace tensorcast {
namespace {

// How much is written before the kernel is asked to begin writing it out, so that the final sync finds little
// left.
constexpr uint64_t kWriteBehindBytes = uint64_t{64} << 20;

}  // namespace

OutputFile::~OutputFile() {
  if (fd_ >= 0) {
    close(fd_);
    unlink(temporary_.c_str());
  }
}

absl::Status OutputFile::Create(uint64_t bytes) {
  // Renaming over a device or a FIFO would remove it from the system.
  struct stat info;
  if (stat(path_.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, " exists and is not a regular file: choose another name"));
  }
  for (int attempt = 0; fd_ < 0; ++attempt) {
    temporary_ = absl::StrCat(path_, ".tmp-", getpid(), "-", attempt);
    fd_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0 && errno != EEXIST) {
      return ErrnoStatus(errno, "create", temporary_);
    }
  }
  return Reserve(bytes);
}

absl::Status OutputFile::Reserve(uint64_t bytes) {
  if (bytes > 0 && fallocate(fd_, 0, 0, static_cast<off_t>(bytes)) != 0 &&
      (errno == ENOSPC || errno == EDQUOT || errno == EFBIG)) {
    return ErrnoStatus(errno, absl::StrCat("reserve ", bytes, " bytes for"), path_);
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Append(ConstHostSpan piece) {
  if (piece.empty()) {
    return absl::OkStatus();
  }
  if (!pieces_.empty()) {
    iovec& last = pieces_.back();
    if (static_cast<const std::byte*>(last.iov_base) + last.iov_len == piece.data()) {
      last.iov_len += piece.size();
      return absl::OkStatus();
    }
  }
  if (pieces_.size() == IOV_MAX) {
    TC_RETURN_IF_ERROR(Flush());
  }
  pieces_.push_back({const_cast<std::byte*>(piece.data()), piece.size()});
  return absl::OkStatus();
}

absl::Status OutputFile::Flush() {
  for (size_t first = 0; first < pieces_.size();) {
    const ssize_t count = writev(fd_, pieces_.data() + first, static_cast<int>(pieces_.size() - first));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return ErrnoStatus(errno, "write", path_);
    }
    first = Advance(first, static_cast<uint64_t>(count));
    BeginWriteBack(static_cast<uint64_t>(count));
  }
  pieces_.clear();
  return absl::OkStatus();
}

// Drops the first `count` bytes of the pieces from `first` on; returns the first piece that has any left.
size_t OutputFile::Advance(size_t first, uint64_t count) {
  while (first < pieces_.size() && count >= pieces_[first].iov_len) {
    count -= pieces_[first++].iov_len;
  }
  if (count > 0) {
    pieces_[first].iov_base = static_cast<std::byte*>(pieces_[first].iov_base) + count;
    pieces_[first].iov_len -= count;
  }
  return first;
}

void OutputFile::BeginWriteBack(uint64_t count) {
  written_bytes_ += count;
  if (written_bytes_ - pushed_bytes_ < kWriteBehindBytes) {
    return;
  }
  // A hint: what it does not achieve, the sync at the end does.
  (void)sync_file_range(fd_, static_cast<off_t>(pushed_bytes_),
                        static_cast<off_t>(written_bytes_ - pushed_bytes_), SYNC_FILE_RANGE_WRITE);
  pushed_bytes_ = written_bytes_;
}

absl::Status OutputFile::Publish() {
  TC_RETURN_IF_ERROR(Flush());
  if (fsync(fd_) != 0) {
    return ErrnoStatus(errno, "sync", path_);
  }
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    return ErrnoStatus(errno, "rename to", path_);
  }
  if (close(std::exchange(fd_, -1)) != 0) {
    return ErrnoStatus(errno, "close", path_);
  }
  return SyncFolder();
}

absl::Status OutputFile::SyncFolder() {
  const size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    return ErrnoStatus(errno, "open", folder);
  }
  absl::Status synced = fsync(fd) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "sync", folder);
  close(fd);
  return synced;
}

}  // namespace tensorcast
