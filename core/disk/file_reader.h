// Reads one file as an object, with direct I/O if the file system supports it. A file that was renamed or
// removed can still be read. Thread-safe.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"
#include "core/disk/file_io.h"
#include "core/source/object_reader.h"

namespace tensorcast {

struct FileReaderOptions {
  std::string_view kind = "origin";  // or "packed"; for metrics
  int max_concurrency = ObjectTraits().max_concurrency;
  uint64_t read_bytes = ObjectTraits().read_bytes;
  FileIo* io = FileIo::System();  // must outlive the reader
};

class FileReader final : public ObjectReader {
 public:
  // A reader of the current version of the regular file behind a descriptor. `path` becomes the object's URI;
  // it is never opened.
  static absl::StatusOr<std::shared_ptr<FileReader>> Of(std::string path, UniqueFd fd,
                                                        const FileReaderOptions& options = {});
  // As Of, but the reader does not own the descriptor. `keep_alive` keeps the descriptor open; if it is null,
  // the descriptor must outlive the reader.
  static absl::StatusOr<std::shared_ptr<FileReader>> Borrow(std::string path, int fd,
                                                            std::shared_ptr<void> keep_alive,
                                                            const FileReaderOptions& options = {});
  ~FileReader() override;

  const ObjectIdentity& identity() const override { return identity_; }
  const ObjectTraits& traits() const override { return traits_; }
  absl::Status Read(const RequestContext& context, uint64_t offset, HostSpan destination,
                    uint64_t needed) override;
  absl::Status CheckUnchanged(const RequestContext& context) override;
  // kBlockBytes with direct I/O, else 1.
  uint64_t alignment() const override;
  bool SeemsCached(uint64_t offset, uint64_t bytes) const override;
  uint64_t ReadCached(uint64_t offset, HostSpan destination) override;
  int descriptor() const override { return fd_; }
  void NoteChunk(absl::Duration took, uint64_t bytes, bool ok) const override;

 private:
  FileReader(std::string path, const struct stat& info, int fd, const FileReaderOptions& options);
  absl::Status CheckSame() const;
  absl::Status EndedEarly(uint64_t at) const;

  const ObjectIdentity identity_;
  const std::string_view kind_;
  FileIo* const io_;
  const int fd_;
  UniqueFd owned_fd_;                 // empty if fd_ is borrowed
  std::shared_ptr<void> keep_alive_;  // for a borrowed fd_
  const UniqueFd direct_fd_;
  const ObjectTraits traits_;
  std::atomic<bool> use_direct_;
  // A mapping for mincore(2), which says which pages are cached. The mapped bytes are never read. Null for an
  // empty file.
  void* pages_ = nullptr;
  std::atomic<int> false_hits_ = 0;
};

}  // namespace tensorcast
