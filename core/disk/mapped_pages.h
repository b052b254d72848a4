// What a process stored to a file through a mapping. Stateless; thread-safe. Internal to this folder.
#pragma once

#include "absl/status/status.h"
#include "base/request_context.h"
#include "core/disk/file_io.h"

namespace tensorcast {

// Writes out what was stored to the file through mappings.
//
// A store to a mapped page changes the file's mtime only where the page was clean. Once all of them have been
// written out, each first store to one of them does, so that a file which somebody writes through a mapping
// is seen to change; its time was looked at before, so that a store in the meantime is seen as well. A file
// system that does not take part (in memory, or stacked) leaves things as they are.
//
// As long as the disk takes, which for a large file that was just written is many seconds: hence in steps,
// between which the context is looked at.
absl::Status WriteOutMappedPages(const RequestContext& context, const OpenedFile& file);

}  // namespace tensorcast
