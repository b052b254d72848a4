// Non-blocking sends and receives on a unix socket, with one descriptor beside the bytes. Both ends of the
// handle socket use it; internal to this folder. Stateless.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/handles/handles.h"

namespace tensorcast {

struct Received {
  size_t bytes = 0;         // 0 with neither flag: nothing is there now
  bool closed = false;      // the peer closed its end, or reset the connection
  UniqueFd fd;              // close-on-exec
  bool excess_fds = false;  // more than one came; the others are closed already
};

// Reads what is there, up to buffer.size() bytes. An error means that the socket is broken.
absl::StatusOr<Received> ReceiveSome(int socket, std::span<std::byte> buffer);

// Sends what the socket takes, `fd` (unless -1) with the first byte of it. 0 when it takes nothing now.
// UNAVAILABLE when the peer is gone.
absl::StatusOr<size_t> SendSome(int socket, std::string_view bytes, int fd);

}  // namespace tensorcast
