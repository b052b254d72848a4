// What a process stored to a file through a mapping, and whether the file shows it; and whether the file
// system may hang. Stateless; thread-safe.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "base/request_context.h"
#include "core/source/object_reader.h"

namespace tensorcast {

// Writes out what was stored to the file through mappings.
//
// A store to a mapped page changes the file's mtime only where the page was clean. Once all of them have been
// written out, each first store to one of them does, so that a file that is written through a mapping
// is seen to change; its time was looked at before, so that a store in the meantime is seen as well. A file
// system that does not take part (in memory, or stacked) leaves things as they are.
//
// As long as the disk takes, which for a large file that was just written is many seconds: hence in steps,
// between which the context is looked at.
absl::Status WriteOutMappedPages(const RequestContext& context, const ObjectReader& file);

// The name of a type of file system (statfs's f_type) on which a store through a mapping may leave no trace
// in the file's times, so that an unchanged identity proves nothing. Empty: each first store after
// WriteOutMappedPages shows, or reaches the file together with its new times (network file systems).
// README.md has the reasons.
std::string_view UntraceableFileSystem(uint64_t type);

// That of the file's own file system. "unknown" where it cannot be told.
std::string_view UntraceableFileSystemOf(int fd);

// Whether the file lies on a file system that is not known to be of a local disk or of memory: reading it may
// take forever.
bool MayHang(int fd);

}  // namespace tensorcast
