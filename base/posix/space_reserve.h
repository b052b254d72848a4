// A file that only takes up room, so that what has to be written some day finds some: a process gives the
// room back when it starts, writes what a start writes, and takes it again. Without it a full file system
// keeps a process from starting that would do no more than read.
#pragma once

#include <cstdint>
#include <string>

namespace tensorcast {

// Gives back what is reserved at `path`; nothing there is fine.
void ReleaseSpace(const std::string& path);

// Reserves `bytes` there, or as much of them as there is. Says in the log when that is nothing.
void ReserveSpace(const std::string& path, uint64_t bytes);

}  // namespace tensorcast
