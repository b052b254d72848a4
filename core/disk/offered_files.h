// Opens files that a client of this host passed as descriptors (core/handles, OFFER_FILES). Only the client's
// permissions count, because this process opens no path. The client chose the file system behind each
// descriptor, so the function may block as long as that file system blocks: call it with RunAside
// (base/aside.h). Thread-safe.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"
#include "base/request_context.h"
#include "core/source/object_reader.h"

namespace tensorcast {

// Returns a reader for each file; its URI is the path that the kernel reports for the descriptor. Stores
// through mappings are written out first (WriteOutMappedPages). INVALID_ARGUMENT, naming the path and its
// kind, for anything but a regular file: a folder, FIFO, device, socket or memory file.
absl::StatusOr<ObjectReaders> OpenOfferedFiles(const RequestContext& context, std::vector<UniqueFd> fds);

}  // namespace tensorcast
