// Opens files that a client of this host handed over as descriptors (core/handles, OFFER_FILES). Only the
// client's permissions count, because this process opens no path. The client chose the file system behind
// each descriptor, so this may block as long as that file system does: call it by base/aside.h. Thread-safe.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"
#include "base/request_context.h"
#include "core/source/object_reader.h"

namespace tensorcast {

// Each file with its path as this process's kernel knows it.
// INVALID_ARGUMENT, naming the path and what is there, for anything but a regular file: folder, FIFO, device,
// socket, memory file. What was written through a mapping is written out first (WriteOutMappedPages).
absl::StatusOr<ObjectReaders> OpenOfferedFiles(const RequestContext& context, std::vector<UniqueFd> fds);

}  // namespace tensorcast
