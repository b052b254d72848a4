// Opens files that a client of this host passed as descriptors (core/handles, OFFER_FILES). This process
// opens no path, so only the client's permissions count. The client chose the file systems of the files, and
// such a file system may hang: call the function with RunAside (base/aside.h). Thread-safe.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"
#include "base/request_context.h"
#include "core/source/object_reader.h"

namespace tensorcast {

// Returns a reader for each file; its URI is the path that the kernel reports for the descriptor. Pages
// changed through mappings are synced first (WriteOutMappedPages). INVALID_ARGUMENT, naming the path and its
// kind, for anything but a regular file: a folder, FIFO, device, socket or memory file.
absl::StatusOr<ObjectReaders> OpenOfferedFiles(const RequestContext& context, std::vector<UniqueFd> fds);

}  // namespace tensorcast
