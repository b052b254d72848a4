// The bytes of one connection, as they are or encrypted: what stands between a socket that does not block and
// the protocol. One owner thread.
#pragma once

#include <sys/uio.h>

#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"

namespace tensorcast::transport::tcp {

class ByteStream {
 public:
  // Closes the socket: the kernel then neither reads nor writes for it.
  virtual ~ByteStream() = default;

  // To wait for; nothing else is to be done with it.
  virtual int fd() const = 0;

  // Each moves as many bytes as can be moved now; 0: none, wait for the socket. UNAVAILABLE when the other
  // end has closed the connection, or it broke. REQUIRES: there is room, or there are bytes.
  virtual absl::StatusOr<size_t> Read(std::span<const iovec> into) = 0;
  virtual absl::StatusOr<size_t> Write(std::span<const iovec> from) = 0;
};

// The socket's bytes as they are. The socket is connected and does not block.
std::unique_ptr<ByteStream> NewPlainStream(UniqueFd socket);

}  // namespace tensorcast::transport::tcp
