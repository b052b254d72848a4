// Writing one large file from memory so that it appears under its name whole or not at all. For this folder's
// own use. Thread-compatible.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/request_context.h"
#include "core/memory/host_pool.h"

namespace tensorcast {

// A new file in the folder of the one that it is to become. Until it is published it has no name, so that
// whatever ends the process leaves nothing behind. Where the file system has no nameless files (O_TMPFILE) it
// is `<path>.tmp-<pid>-<n>`, locked (flock) while it is written: removed again unless it is published, and
// what a killed writer left is removed by the next one to the same path.
class OutputFile {
 public:
  // Create, Append and Publish fail with CANCELLED or DEADLINE_EXCEEDED as soon as the context says so.
  explicit OutputFile(std::string path, RequestContext context = {})
      : path_(std::move(path)), context_(std::move(context)) {}
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // INVALID_ARGUMENT when something that is not a regular file has the name. RESOURCE_EXHAUSTED when the disk
  // has no room for `bytes`, on file systems that can tell.
  absl::Status Create(uint64_t bytes);

  // Appends. The memory must stay as it is until Publish. Pieces are written many at a time, and pieces that
  // follow each other in memory as one.
  absl::Status Append(ConstHostSpan piece);

  // Writes what is left, syncs, renames over what was there, syncs the folder. Once.
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
  std::string temporary_;  // its name; empty while it has none
  int fd_ = -1;
  std::vector<iovec> pieces_;
  uint64_t written_bytes_ = 0;
  uint64_t pushed_bytes_ = 0;  // of those, what the kernel was asked to write out
};

}  // namespace tensorcast
