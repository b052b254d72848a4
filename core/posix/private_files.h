// Folders and files that hold a process's state, and that nobody else on the host may look into. Stateless;
// thread-safe.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tensorcast {

// Sees to it that there is a folder at `path` which only this process's user can use. One that is missing is
// made, with those above it, at mode 0700. One that this user owns, and that is empty or holds an entry
// called `own_entry`, loses the permissions of everybody else, but for `others`: the bits that they keep
// (0011: to pass through). One with other content in it is left as it is.
//
// PERMISSION_DENIED when others than this user and root own the folder or may write to it: what is in there
// could be exchanged by them. Otherwise as ErrnoStatus.
absl::Status MakePrivateFolder(const std::string& path, std::string_view own_entry, mode_t others = 0);

// Sees to it that there is a file at `path`, made empty when missing, that only its owner can open (0600).
absl::Status MakePrivateFile(const std::string& path);

}  // namespace tensorcast
