// Makes writes through memory mappings visible in a file's times, and classifies file systems: some never
// show such writes, some may hang. Stateless; thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "base/request_context.h"
#include "core/source/object_reader.h"

namespace tensorcast {

// Writes to disk the pages of the file that processes changed through memory mappings.
//
// A write to a mapped page changes the file's mtime only if the page was clean. After all pages were written
// to disk, the next write to each page changes the mtime and is then visible. REQUIRES: the file's identity
// was read before the call, so that a write during the call is visible, too. The call has no effect on file
// systems in memory and on stacked file systems.
//
// For a large file that was just written the call takes many seconds. It runs in steps, and checks the
// context between them.
absl::Status WriteOutMappedPages(const RequestContext& context, const ObjectReader& file);

// The name of a type of file system (statfs's f_type) that may leave a file's times unchanged after a write
// through a mapping. On such a file system an unchanged identity proves nothing. Empty for other types.
// README.md has the reasons.
std::string_view UntraceableFileSystem(uint64_t type);

// As UntraceableFileSystem, for the file's own file system. "unknown" if its type cannot be read.
std::string_view UntraceableFileSystemOf(int fd);

// False if the file's file system is of a type that is on a local disk or in memory. If true, a read of the
// file may never end.
bool MayHang(int fd);

}  // namespace tensorcast
