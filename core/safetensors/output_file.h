// Writes one large file from memory; the file appears under its name completely or not at all. Private to
// this folder. Thread-compatible.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/request_context.h"
#include "core/memory/host_pool.h"

namespace tensorcast {

// A new file in the folder of its final path. Until Publish the file has no name (O_TMPFILE). On a file
// system without nameless files, the file is locked (flock) and its name is `<path>.tmp-<pid>-<n>` until
// Publish. The destructor removes an unpublished file. The next writer to the same path removes the files of
// killed writers.
class OutputFile {
 public:
  // Create, Append and Publish fail with CANCELLED or DEADLINE_EXCEEDED soon after the context ends.
  explicit OutputFile(std::string path, RequestContext context = {})
      : path_(std::move(path)), context_(std::move(context)) {}
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Reserves space for `bytes` if the file system supports it; RESOURCE_EXHAUSTED if the space is not free.
  // INVALID_ARGUMENT if the path exists and is not a regular file.
  absl::Status Create(uint64_t bytes);

  // Appends a piece, which may be written later. Its memory must not change until Publish has returned.
  absl::Status Append(ConstHostSpan piece);

  // Writes the rest, syncs the file, gives it its name (replacing an existing file), and syncs the folder.
  // Call it once.
  absl::Status Publish();

 private:
  absl::Status Open();
  absl::Status OpenNamed();
  absl::Status Check() const;
  absl::Status Reserve(uint64_t bytes);
  absl::Status Flush();
  ssize_t WriteSome(size_t first);
  size_t Advance(size_t first, uint64_t count);
  void BeginWriteBack(uint64_t count);
  absl::Status Sync();
  absl::Status Name();

  const std::string path_;
  const RequestContext context_;
  std::string temporary_;  // the temporary name; empty if the file has none
  int fd_ = -1;
  std::vector<iovec> pieces_;
  uint64_t written_bytes_ = 0;
  uint64_t pushed_bytes_ = 0;  // the written bytes for which write-back was started
};

}  // namespace tensorcast
