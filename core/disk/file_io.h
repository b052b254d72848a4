// The system calls for reading a file, behind an interface so that a test can make them fail, and the
// conversion of their errors. Thread-safe.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "core/artifact/origin.h"
#include "core/memory/host_pool.h"

namespace tensorcast {

// The identity of the file at `path` with the attributes `info`.
ObjectIdentity IdentityOf(std::string path, const struct stat& info);

class FileIo {
 public:
  virtual ~FileIo() = default;

  // As pread(2): the bytes read, or -1 and errno.
  virtual ssize_t Read(int fd, HostSpan destination, uint64_t offset) = 0;
  // As Read, but reads only bytes in the page cache from `offset` on; -1 and EAGAIN when there are none.
  virtual ssize_t ReadCached(int fd, HostSpan destination, uint64_t offset) = 0;
  virtual int Stat(int fd, struct stat* info) = 0;

  static FileIo* System();  // the kernel's; never destroyed
};

// As ErrnoStatus, but UNAVAILABLE if the mount went away (ESTALE, ENOTCONN, ENODEV) or does not answer
// (ETIMEDOUT): the file may be available again later.
absl::Status FileError(int error_number, std::string_view operation, const std::string& path);

}  // namespace tensorcast
