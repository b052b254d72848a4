// One file, open for reading with direct I/O where the file system has it, and without where it has not.
// Internal to this folder. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"
#include "core/disk/file_io.h"

namespace tensorcast {

class FileReader {
 public:
  // FAILED_PRECONDITION when the file is no longer as its identity says.
  static absl::StatusOr<std::unique_ptr<FileReader>> Of(OpenedFile file, FileIo* io);
  // Of a borrowed descriptor, of the file as it is now. `name` is for messages; `fd` must outlive the reader.
  static absl::StatusOr<std::unique_ptr<FileReader>> FromDescriptor(std::string name, int fd, FileIo* io);
  ~FileReader();

  const FileIdentity& identity() const { return identity_; }
  // Whether reads with an aligned offset, address and size go past the page cache.
  bool direct() const { return use_direct_.load(std::memory_order_relaxed); }

  // Whether the page cache seems to hold the whole range; cheap, and never wrong twice for long.
  bool SeemsCached(uint64_t offset, uint64_t bytes) const;
  // Reads what the page cache holds at `offset`, without waiting for the disk: the bytes read, 0 when there
  // are none.
  uint64_t ReadCached(uint64_t offset, HostSpan destination);

  // Reads at least the first `needed` bytes of `destination`; those behind may be past the end of the file.
  // FAILED_PRECONDITION when the file shrank, DATA_LOSS when the disk failed.
  absl::Status Read(uint64_t offset, HostSpan destination, uint64_t needed);

  // FAILED_PRECONDITION when the file changed since it was opened.
  absl::Status CheckUnchanged() const;

 private:
  FileReader(FileIdentity identity, UniqueFd owned, int fd, FileIo* io);
  absl::Status EndedEarly(uint64_t at) const;

  const FileIdentity identity_;
  const UniqueFd owned_fd_;  // not set for a borrowed one
  const int fd_;
  FileIo* const io_;
  const UniqueFd direct_fd_;
  std::atomic<bool> use_direct_;
  // A mapping that is never read: it lets mincore(2) say which pages are cached. Null for an empty file.
  void* pages_ = nullptr;
  std::atomic<int> false_hits_ = 0;
};

}  // namespace tensorcast
