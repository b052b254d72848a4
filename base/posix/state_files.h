// Folders and files for a process's state that no other user of the host may read, and disk space that is
// reserved for the next start. Stateless; thread-safe for different paths.
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

// Makes sure that `path` is a folder that only this process's user can use. A missing folder is made; missing
// folders above it get the mode that the umask allows. If this user owns the folder, and it is new, empty, or
// contains `own_entry`, other users get exactly the permission bits in `others` (0011: to pass through).
// If their only permission so far is to pass through the folder, they keep it, because another process of
// this user may need it.
//
// PERMISSION_DENIED if a user other than this user or root owns the folder, or if other users may write to
// it. Other errors are from ErrnoStatus.
absl::Status MakePrivateFolder(const std::string& path, std::string_view own_entry, mode_t others = 0);

// Checks whether MakePrivateFolder accepts `path`; OK for a missing folder. Changes nothing.
absl::Status CheckPrivateFolder(const std::string& path, std::string_view own_entry);

// Makes sure that a file exists at `path` that only its owner can open (0600). Creates a missing file without
// content. A file of another user keeps its mode. FAILED_PRECONDITION if `path` is not a file.
absl::Status MakePrivateFile(const std::string& path);

// Replaces the file at `path` by a file with this content and mode (less the umask). A reader finds the old
// or the new content in full, even after a power failure. On success the content is on the disk. After an
// error the file has the old content, or the new content if only its folder could not be synced. REQUIRES:
// one call for this path at a time.
absl::Status ReplaceFile(const std::string& path, std::string_view content, mode_t mode = 0600);

// Writes the names in the folder to the disk (fsync).
absl::Status SyncFolder(const std::string& path);

// The next two functions manage a padding file that reserves disk space, so that a process can start on a
// full file system. A process that starts releases the space, writes its files, and reserves the space again.

// Releases the space that is reserved at `path`; does nothing when there is none.
void ReleaseSpace(const std::string& path);
// Reserves `bytes` at `path`. If less space is free, tries a half, a quarter and so on, down to 4 KiB. Logs
// if nothing can be reserved.
void ReserveSpace(const std::string& path, uint64_t bytes);

}  // namespace tensorcast
