// A ByteStream moves the bytes of one connection between a non-blocking socket and the protocol, in clear or
// encrypted by TLS. One owner thread.
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

  // The socket, only for the caller to wait on.
  virtual int fd() const = 0;
  // The epoll events that the caller must wait for; `has_output`: the caller has bytes to write. May change
  // with each Read and Write.
  virtual uint32_t Events(bool has_output) const = 0;
  // Whether the next Read may return bytes that have already left the socket: epoll does not report them.
  virtual bool has_buffered() const = 0;
  // Whether the stream holds bytes that Write has accepted and the socket has not (at most a few hundred
  // KiB). The next Write sends them, even if it is given no bytes.
  virtual bool has_unsent() const = 0;
  // The name in the peer's certificate; empty without certificates, and until the first bytes have moved.
  virtual const std::string& peer() const = 0;
  // Whether the peer's certificate would still be accepted now: UNAUTHENTICATED when it has expired,
  // PERMISSION_DENIED when its name is denied. OK without certificates.
  virtual absl::Status CheckPeer() const = 0;

  // The TLS session with which another connection to the same peer can be resumed; null without TLS, and at
  // a client's end until it has read the first bytes.
  virtual std::shared_ptr<ssl_session_st> session() const { return nullptr; }

  // Read and Write move as many bytes as they can now, and return their number; 0: wait for the socket.
  // UNAVAILABLE when the peer has closed the connection, or it broke; UNAUTHENTICATED or PERMISSION_DENIED
  // when the peer's certificate is refused. Write has copied the bytes that it counts. REQUIRES: `into` has
  // room; `from` has bytes, or has_unsent().
  virtual absl::StatusOr<size_t> Read(std::span<const iovec> into) = 0;
  virtual absl::StatusOr<size_t> Write(std::span<const iovec> from) = 0;
};

// A stream without encryption. REQUIRES: the socket is connected and does not block.
std::unique_ptr<ByteStream> NewPlainStream(UniqueFd socket);

// Streams that use TLS 1.3; both ends show a certificate of a node. The client requires the name `expected`
// in the source's certificate before it sends data. The first Reads and Writes do the handshake. If the
// client passes the session of a previous connection, the handshake resumes it without exchanging
// certificates; each end still checks the other's name, and CheckPeer's conditions.
absl::StatusOr<std::unique_ptr<ByteStream>> NewTlsServerStream(
    UniqueFd socket, std::shared_ptr<const security::Identity> identity);
absl::StatusOr<std::unique_ptr<ByteStream>> NewTlsClientStream(
    UniqueFd socket, std::shared_ptr<const security::Identity> identity, std::string expected,
    const std::shared_ptr<ssl_session_st>& session = nullptr);

}  // namespace tensorcast::transport::tcp
