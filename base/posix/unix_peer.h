// What the kernel says about the process at the other end of a unix socket. Stateless.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tensorcast {

// Of the process that connected, as it was then.
absl::StatusOr<ucred> PeerCredentials(int socket);

// PERMISSION_DENIED unless the peer is of this process's user, or is root (who could become that user
// anyway), or one of its groups (primary or supplementary) is allowed.
absl::Status CheckPeer(int socket, const std::vector<gid_t>& allowed_groups);

}  // namespace tensorcast
