// Checks the descriptors that the server keeps for a client beside its socket: the pidfd of the client's
// process, and the memory and files that the client offers. A client may pass a descriptor of a file system
// that hangs, so no check waits for a file system.
//
// Errors go to the client: INVALID_ARGUMENT for a descriptor that the server does not accept,
// RESOURCE_EXHAUSTED if the server has no descriptor left for this client. Stateless; thread-safe. Internal
// to this folder.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/posix/foreign_fds.h"
#include "base/posix/unique_fd.h"

namespace tensorcast {

// RESOURCE_EXHAUSTED if `fd` is one of the descriptors that the daemon reserves for itself
// (base/posix/process_limits.h). The server keeps `fd` for the client at the other end of `socket`.
absl::Status CheckNotReserved(const UniqueFd& fd, const UniqueFd& socket);

// A pidfd of the process that connected; readable when that process has ended. NOT_FOUND if the process has
// already ended. Before Linux 6.5: FAILED_PRECONDITION if the daemon cannot see the process's PID namespace.
absl::StatusOr<UniqueFd> OpenPeerProcess(int socket);

// Returns the only descriptor of `fds`: a memfd of at least `bytes` bytes, sealed WRITE | SHRINK | GROW. A
// memfd with huge pages must have no holes. Such memory never changes, and no read of it raises SIGBUS.
absl::StatusOr<UniqueFd> TakeMemory(ForeignFds fds, uint64_t bytes, const UniqueFd& socket);

// Checks that `fd` is open for reading. The daemon opens the file again with its own rights. With a
// descriptor that is O_PATH or only for writing, a client could make the daemon read a file that the client
// may not read.
absl::Status CheckMayBeRead(int fd);

}  // namespace tensorcast
