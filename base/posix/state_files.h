// Folders and files for a process's state. No other user of the host may read them, and space is reserved for
// what the next start writes. Stateless; thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tensorcast {

// The value of the environment variable; empty when it is not set.
std::string ReadEnvironment(const char* name);

// The folder in which servers that this user starts keep their state by default: /var/lib/tensorcast for
// root, otherwise tensorcast in $XDG_STATE_HOME or in ~/.local/state.
std::string DefaultStateFolder();

// Makes sure that a folder exists at `path` which only this process's user can use. A missing folder is made
// with mode 0700; missing folders above it get the umask's mode. In a folder of this user that is empty or
// contains `own_entry`, other users keep at most the permission bits in `others` (0011: to pass through).
// Other users that may only pass through keep that permission in any case, since another process that shares
// the folder gave it to them. A folder with other content is left unchanged.
//
// PERMISSION_DENIED when another user than this one and root owns the folder or may write to it: that user
// could exchange its content. Other errors as ErrnoStatus.
absl::Status MakePrivateFolder(const std::string& path, std::string_view own_entry, mode_t others = 0);

// The error that MakePrivateFolder would return for the folder at `path`; OK when there is none. Makes and
// changes nothing.
absl::Status CheckPrivateFolder(const std::string& path, std::string_view own_entry);

// Makes sure that a file exists at `path` that only its owner can open (0600); a missing file is made empty.
absl::Status MakePrivateFile(const std::string& path);

// Replaces the file at `path` by one with this content and mode. A reader of `path` finds all of the old
// content or all of the new, even after a power failure. The content is on the disk on return. A write that
// fails leaves nothing behind.
absl::Status ReplaceFile(const std::string& path, std::string_view content, mode_t mode = 0600);

// Returns when the names in the folder are on the disk.
absl::Status SyncFolder(const std::string& path);

// Reserves disk space by a file of padding. A process that starts releases the space, writes its files, and
// reserves the space again. Without the reserved space, a process could not start on a full file system, even
// if it would only read afterwards.

// Releases the space that is reserved at `path`; does nothing when there is none.
void ReleaseSpace(const std::string& path);
// Reserves `bytes` at `path`, or as many as are free. Logs when none are free.
void ReserveSpace(const std::string& path, uint64_t bytes);

}  // namespace tensorcast
