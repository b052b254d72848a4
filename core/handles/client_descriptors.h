// The descriptors that the server keeps for a client beside its connection: the pidfd of the client's
// process, and the memory and files that the client offers. Each is checked before the server keeps it. A
// client may pass any descriptor, also one of a file system that hangs, so the checks never wait for a file
// system.
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

// Refuses a descriptor that a connection would keep beside its socket, if the descriptor belongs to the
// reserve: clients must not use up the descriptors that the daemon needs itself
// (base/posix/process_limits.h).
absl::Status CheckNotReserved(const UniqueFd& fd, const UniqueFd& socket);

// A pidfd of the process that connected: readable once that process is gone. NOT_FOUND if the process is gone
// already. FAILED_PRECONDITION if the process is in a PID namespace that the daemon cannot see, and the
// kernel (before Linux 6.5) cannot give a pidfd for a socket.
absl::StatusOr<UniqueFd> OpenPeerProcess(int socket);

// Checks the memory that came with a frame, and returns its descriptor. The frame must have exactly one
// descriptor: a memfd of at least `bytes` bytes, sealed WRITE | SHRINK | GROW, and without holes if it has
// huge pages. Such memory neither changes nor shrinks, so no read of it raises SIGBUS.
absl::StatusOr<UniqueFd> TakeMemory(ForeignFds fds, uint64_t bytes, const UniqueFd& socket);

// Checks that the client has the file open for reading, and so may read it. The check is needed because the
// daemon opens the file again with its own rights. From a descriptor that only names a file (O_PATH) or is
// open only for writing, the daemon would read bytes that the client may not read. Never waits for the file
// system.
absl::Status CheckMayBeRead(int fd);

}  // namespace tensorcast
