// Folders and files that hold a process's state: no other user of the host may read them, and there is
// room for what a start writes. Stateless; thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tensorcast {

// The value of the environment variable; empty where it is not set.
std::string ReadEnvironment(const char* name);

// The folder in which servers that this user starts keep their state unless they are told otherwise:
// /var/lib/tensorcast for root, else tensorcast in $XDG_STATE_HOME or in ~/.local/state.
std::string DefaultStateFolder();

// Sees to it that there is a folder at `path` which only this process's user can use. One that is missing is
// made at mode 0700; those above it, where they are missing, as the umask has it. One that this user owns,
// and that is empty or holds an entry called `own_entry`, loses the permissions of all other users, but for
// `others`: the bits that they get (0011: to pass through). Where they have no other permission than to pass
// through, they keep it: another process that shares the folder let them. One with other content in it is
// left as it is.
//
// PERMISSION_DENIED when others than this user and root own the folder or may write to it: what is in there
// could be exchanged by them. Otherwise as ErrnoStatus.
absl::Status MakePrivateFolder(const std::string& path, std::string_view own_entry, mode_t others = 0);

// The error that MakePrivateFolder would return for the folder that is at `path`, by this user; nothing is
// made or changed. OK when there is none.
absl::Status CheckPrivateFolder(const std::string& path, std::string_view own_entry);

// Sees to it that there is a file at `path`, made empty when missing, that only its owner can open (0600).
absl::Status MakePrivateFile(const std::string& path);

// Puts `content` at `path`, in a file of this mode: a reader of `path` finds the old content or all of the
// new, whenever the power goes. It is on the disk on return. Nothing is left of a write that failed.
absl::Status ReplaceFile(const std::string& path, std::string_view content, mode_t mode = 0600);

// Returns when the names in the folder are on the disk.
absl::Status SyncFolder(const std::string& path);

// A file that only takes up room, so that what has to be written some day finds some: a process gives the
// room back when it starts, writes what a start writes, and takes it again. Without it a full file system
// keeps a process from starting that would do no more than read.

// Gives back what is reserved at `path`; nothing there is fine.
void ReleaseSpace(const std::string& path);
// Reserves `bytes` there, or as much of them as there is. Says in the log when that is nothing.
void ReserveSpace(const std::string& path, uint64_t bytes);

}  // namespace tensorcast
