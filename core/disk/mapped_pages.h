// Makes stores through mappings visible in a file's times, and tells on which file systems that is impossible
// and which file systems may hang. Stateless; thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "base/request_context.h"
#include "core/source/object_reader.h"

namespace tensorcast {

// Writes out what was stored to the file through mappings.
//
// A store to a mapped page changes the file's mtime only if the page was clean. After all pages were written
// out, the next store to each page changes the mtime, so a write through a mapping becomes visible. The
// file's identity was read before the write-out, so a store during the write-out is visible, too. On file
// systems that do not do so (in memory, or stacked) the call has no effect.
//
// For a large file that was just written this takes many seconds. It therefore runs in steps, and checks the
// context between them.
absl::Status WriteOutMappedPages(const RequestContext& context, const ObjectReader& file);

// The name of a type of file system (statfs's f_type) on which a store through a mapping may leave no trace
// in the file's times, so that an unchanged identity proves nothing. Empty: each first store after
// WriteOutMappedPages shows, or reaches the file together with its new times (network file systems).
// README.md has the reasons.
std::string_view UntraceableFileSystem(uint64_t type);

// As UntraceableFileSystem, for the file's own file system. "unknown" if its type cannot be read.
std::string_view UntraceableFileSystemOf(int fd);

// Whether the file lies on a file system that is not known to be of a local disk or of memory: reading it may
// take forever.
bool MayHang(int fd);

}  // namespace tensorcast
