// The process at the other end of the handle socket, and the memory that it hands over. Internal to this
// folder; stateless.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"

namespace tensorcast {

// A pidfd of the process that connected: readable once that process is gone. NOT_FOUND when it is gone
// already.
absl::StatusOr<UniqueFd> OpenPeerProcess(int socket);

// Whether `fd` is memory that can be mapped and read without surprises: INVALID_ARGUMENT unless it is a memfd
// sealed WRITE | SHRINK | GROW with `bytes` in it.
absl::Status CheckOfferedMemory(int fd, uint64_t bytes);

}  // namespace tensorcast
