// The descriptors that the server keeps for a client beside its connection: the pidfd of the client's
// process, and the memory and files that the client offers. Each is checked before the server keeps it. A
// client may pass any descriptor, also one of a file system that hangs, so the checks ask nothing of such a
// file system.
//
// Errors go to the client: INVALID_ARGUMENT for a descriptor that the server does not take,
// RESOURCE_EXHAUSTED if the server has no descriptor left for this client. Stateless; thread-safe. Internal
// to this folder.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/posix/foreign_fds.h"
#include "base/posix/unique_fd.h"

namespace tensorcast {

// Refuses a descriptor that a connection would keep beside its socket, if it is one of the reserve: clients
// must not use up the descriptors that the daemon needs itself (base/posix/process_limits.h).
absl::Status CheckNotReserved(const UniqueFd& fd, const UniqueFd& socket);

// A pidfd of the process that connected: readable once that process is gone. NOT_FOUND when it is gone
// already; FAILED_PRECONDITION when the daemon cannot see the process, and this kernel has no pidfd of it.
absl::StatusOr<UniqueFd> OpenPeerProcess(int socket);

// The one descriptor of memory that came with a frame, checked: it must be a memfd sealed WRITE | SHRINK |
// GROW with `bytes` bytes in it, and no holes where it has huge pages. Such memory neither changes nor
// shrinks, so no read of it raises SIGBUS.
absl::StatusOr<UniqueFd> TakeMemory(ForeignFds fds, uint64_t bytes, const UniqueFd& socket);

// Checks that the client has the file open for reading, and so may read it. The daemon opens descriptors
// anew, with its own rights: from one that only names a file (O_PATH), or may only write to it, the daemon
// would read what the client may not. Asks nothing of the file system.
absl::Status CheckMayBeRead(int fd);

}  // namespace tensorcast
