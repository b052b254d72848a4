// A path as the address of a unix socket.
#pragma once

#include <sys/un.h>

#include <string>

#include "absl/status/statusor.h"

namespace tensorcast {

// INVALID_ARGUMENT for a path that is empty or longer than a socket address holds (107 bytes).
absl::StatusOr<sockaddr_un> UnixAddress(const std::string& path);

}  // namespace tensorcast
