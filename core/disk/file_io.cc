#include "core/disk/file_io.h"

#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/status.h"

namespace tensorcast {
namespace {

int64_t Nanoseconds(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

class SystemFileIo final : public FileIo {
 public:
  ssize_t Read(int fd, HostSpan destination, uint64_t offset) override {
    return pread(fd, destination.data(), destination.size(), static_cast<off_t>(offset));
  }
  ssize_t ReadCached(int fd, HostSpan destination, uint64_t offset) override {
    const iovec iov{destination.data(), destination.size()};
    // It fails with EAGAIN in place of waiting for the disk.
    return preadv2(fd, &iov, 1, static_cast<off_t>(offset), RWF_NOWAIT);
  }
  int Stat(int fd, struct stat* info) override { return fstat(fd, info); }
};

}  // namespace

FileIo* FileIo::System() {
  static FileIo* const io = new SystemFileIo();
  return io;
}

absl::Status FileError(int error_number, std::string_view operation, const std::string& path) {
  absl::Status status = ErrnoStatus(error_number, operation, path);
  // These say where the path leads or that it may not be read, and stay as they are.
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case EPERM:
    case ELOOP:
    case ENAMETOOLONG:
      return status;
    default:
      break;
  }
  // These errors are about this process, or about the medium, which says that it lost what it held.
  const bool tells =
      absl::IsResourceExhausted(status) || absl::IsDataLoss(status) || absl::IsInternal(status);
  return tells ? status : absl::UnavailableError(status.message());
}

ObjectIdentity IdentityOf(std::string path, const struct stat& info) {
  const FileVersion version{.device = info.st_dev,
                            .inode = info.st_ino,
                            .mtime_ns = Nanoseconds(info.st_mtim),
                            .ctime_ns = Nanoseconds(info.st_ctim)};
  return {.uri = std::move(path), .bytes = static_cast<uint64_t>(info.st_size), .version = version.Text()};
}

}  // namespace tensorcast
