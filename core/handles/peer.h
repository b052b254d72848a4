// What the kernel says about the process at the other end of a unix socket. Internal to this folder;
// stateless.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/handles/handles.h"

namespace tensorcast {

// PERMISSION_DENIED unless the peer is of this process's user, or one of its groups (primary or
// supplementary) is allowed.
absl::Status CheckPeer(int socket, const std::vector<gid_t>& allowed_groups);

// A pidfd of the process that connected: readable once that process is gone. NOT_FOUND when it is gone
// already.
absl::StatusOr<UniqueFd> OpenPeerProcess(int socket);

// Whether `fd` is memory that can be mapped and read without surprises: INVALID_ARGUMENT unless it is a memfd
// sealed WRITE | SHRINK | GROW with `bytes` in it.
absl::Status CheckOfferedMemory(int fd, uint64_t bytes);

}  // namespace tensorcast
