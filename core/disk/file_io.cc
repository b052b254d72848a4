#include "core/disk/file_io.h"

#include <sys/uio.h>
#include <unistd.h>

namespace tensorcast {
namespace {

class SystemFileIo final : public FileIo {
 public:
  ssize_t Read(int fd, HostSpan destination, uint64_t offset) override {
    return pread(fd, destination.data(), destination.size(), static_cast<off_t>(offset));
  }
  ssize_t ReadCached(int fd, HostSpan destination, uint64_t offset) override {
    const iovec iov{destination.data(), destination.size()};
    return preadv2(fd, &iov, 1, static_cast<off_t>(offset), RWF_NOWAIT);
  }
  int Stat(int fd, struct stat* info) override { return fstat(fd, info); }
};

}  // namespace

FileIo* FileIo::System() {
  static FileIo* const io = new SystemFileIo();
  return io;
}

int64_t ModifiedNs(const struct stat& info) {
  return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

}  // namespace tensorcast
