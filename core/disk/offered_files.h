// Files that a client of this host has open and handed over (core/handles, OFFER_FILES): the client's own
// permission counts, whatever this process may read, and no path is opened for it. The peer chose the file
// system behind each descriptor, so every function here may block for as long as that file system does: call
// them by base/aside.h. Functions only, thread-safe.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"
#include "base/request_context.h"
#include "core/disk/file_io.h"

namespace tensorcast {

// Each file with its path as this process's kernel knows it, for messages, and its size and mtime.
// INVALID_ARGUMENT, naming the path and what is there, for anything but a regular file: folder, FIFO, device,
// socket, memory file. What was written through a mapping is written out first (WriteOutMappedPages).
absl::StatusOr<std::vector<OpenedFile>> DescribeOfferedFiles(const RequestContext& context,
                                                             std::vector<UniqueFd> fds);

// Whether one of the files lies on a file system that is not known to be of a local disk or of memory:
// reading it may take forever.
bool MayHang(std::span<const OpenedFile> files);

}  // namespace tensorcast
