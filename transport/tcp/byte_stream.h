// The bytes of one connection, as they are or encrypted: what stands between a socket that does not block and
// the protocol. One owner thread.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"

struct ssl_session_st;  // OpenSSL's SSL_SESSION

namespace tensorcast::security {
class Identity;
}

namespace tensorcast::transport::tcp {

class ByteStream {
 public:
  // Closes the socket: the kernel then neither reads nor writes for it.
  virtual ~ByteStream() = default;

  // To wait for; nothing else is to be done with it.
  virtual int fd() const = 0;
  // What to wait for: epoll's events, when the caller has bytes to write or has not. May change with each
  // Read and Write.
  virtual uint32_t Events(bool has_output) const = 0;
  // Whether the next Read may find bytes that were taken from the socket already, of which epoll says
  // nothing.
  virtual bool has_buffered() const = 0;
  // Whether bytes that Write took have not been taken by the socket yet: the next Write, of nothing if need
  // be, sends them. There are at most a few hundred KiB of them.
  virtual bool has_unsent() const = 0;
  // The name in the certificate of the other end; empty where there is none, and before the first bytes were
  // moved.
  virtual const std::string& peer() const = 0;
  // Whether it would be let in now, as it was then: UNAUTHENTICATED when its certificate has ended,
  // PERMISSION_DENIED when its name is denied. OK where there are no certificates.
  virtual absl::Status CheckPeer() const = 0;

  // What another connection to the same end can be introduced by more cheaply; null where there is nothing of
  // the kind, and at a client's end before the first bytes were read.
  virtual std::shared_ptr<ssl_session_st> session() const { return nullptr; }

  // Each moves as many bytes as can be moved now; 0: none, wait for the socket. UNAVAILABLE when the other
  // end has closed the connection, or it broke; UNAUTHENTICATED or PERMISSION_DENIED when its certificate is
  // not the expected one. What Write took it has copied. REQUIRES: there is room, or there are bytes (unsent
  // ones count).
  virtual absl::StatusOr<size_t> Read(std::span<const iovec> into) = 0;
  virtual absl::StatusOr<size_t> Write(std::span<const iovec> from) = 0;
};

// The socket's bytes as they are. The socket is connected and does not block.
std::unique_ptr<ByteStream> NewPlainStream(UniqueFd socket);

// Encrypted, by TLS 1.3; both ends show a certificate of a node. The client's end also insists on the name
// `expected`, before it sends anything. The first Reads and Writes do the handshake; where a client brings
// the session of a previous connection, that resumes it without exchanging certificates. The name of the
// other end, and whether it is still let in, are checked all the same.
absl::StatusOr<std::unique_ptr<ByteStream>> NewTlsServerStream(
    UniqueFd socket, std::shared_ptr<const security::Identity> identity);
absl::StatusOr<std::unique_ptr<ByteStream>> NewTlsClientStream(
    UniqueFd socket, std::shared_ptr<const security::Identity> identity, std::string expected,
    const std::shared_ptr<ssl_session_st>& session = nullptr);

}  // namespace tensorcast::transport::tcp
