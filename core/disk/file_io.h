// A file that is read, what it has to stay, and the few system calls that reading it takes, so that a test
// can make them fail. Thread-safe.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/posix/unique_fd.h"
#include "core/memory/host_pool.h"

namespace tensorcast {

// A file as it was when it was first looked at. A source fails when it is no longer that. Any user may set
// the mtime of their file back; the ctime is the kernel's, and tells of it.
struct FileIdentity {
  std::string path;
  uint64_t bytes = 0;
  int64_t mtime_ns = 0;
  int64_t ctime_ns = 0;
  uint64_t inode = 0;
  uint64_t device = 0;  // of its file system

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

FileIdentity IdentityOf(std::string path, const struct stat& info);

// For an error: how a file that was `was` differs now. Empty: it does not.
std::string DescribeChange(const FileIdentity& was, const FileIdentity& is);

// The same file, open for reading. What is read is read through the descriptor; the path is for messages, and
// for code that opens it again later (import_roots.h).
struct OpenedFile {
  FileIdentity identity;
  UniqueFd fd;
};

class FileIo {
 public:
  virtual ~FileIo() = default;

  // As pread(2): the bytes read, or -1 and errno.
  virtual ssize_t Read(int fd, HostSpan destination, uint64_t offset) = 0;
  // As Read, but only what the page cache holds from `offset` on; -1 and EAGAIN when that is nothing.
  virtual ssize_t ReadCached(int fd, HostSpan destination, uint64_t offset) = 0;
  virtual int Stat(int fd, struct stat* info) = 0;

  static FileIo* System();  // the kernel's; never destroyed
};

// As ErrnoStatus, but UNAVAILABLE where the error says nothing of the file: a mount that went away (ESTALE,
// ENOTCONN, ENODEV) or does not answer (ETIMEDOUT) may be back with everything that it held.
absl::Status FileError(int error_number, std::string_view operation, const std::string& path);

}  // namespace tensorcast
