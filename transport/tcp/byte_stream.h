// A ByteStream reads and writes the bytes of one connection over a non-blocking socket, with or without TLS.
// Used by one thread at a time.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"

struct ssl_ctx_st;      // OpenSSL's SSL_CTX
struct ssl_session_st;  // OpenSSL's SSL_SESSION

namespace tensorcast::security {
class Identity;
}

namespace tensorcast::transport::tcp {

// A TLS session that a later connection to the same peer can resume. Only a stream with the same SSL_CTX
// resumes a session. New certificate files make a new SSL_CTX, because a resumed handshake does not check the
// certificate authority again.
struct TlsSession {
  std::shared_ptr<ssl_ctx_st> context = nullptr;      // of the stream that made the session
  std::shared_ptr<ssl_session_st> session = nullptr;  // null: none
};

class ByteStream {
 public:
  // Closes the socket.
  virtual ~ByteStream() = default;

  // The socket, only for waiting.
  virtual int fd() const = 0;
  // The epoll events that the caller must wait for; `has_output`: the caller has bytes to write. The
  // events may change with each Read and Write.
  virtual uint32_t Events(bool has_output) const = 0;
  // Whether the stream may hold received bytes that Read has not returned. epoll does not report these bytes.
  virtual bool has_buffered() const = 0;
  // Whether the stream holds bytes that Write has accepted and not yet sent, at most a few hundred KiB. The
  // next Write sends these bytes, even if its `from` is empty.
  virtual bool has_unsent() const = 0;
  // The name in the peer's certificate; empty without certificates, and before the handshake has ended.
  virtual const std::string& peer() const = 0;
  // Checks the peer's certificate again: UNAUTHENTICATED if the certificate has expired, PERMISSION_DENIED if
  // its name is denied. OK without certificates.
  virtual absl::Status CheckPeer() const = 0;

  // The session for a later connection. Empty without TLS, and at a client before the first bytes are read.
  virtual TlsSession session() const { return {}; }

  // Read or write as many bytes as possible without blocking, and return their number. After 0 the caller
  // must wait for the socket. Write copies the bytes before it returns. UNAVAILABLE if the connection was
  // closed or broke; UNAUTHENTICATED or PERMISSION_DENIED if the peer's certificate is refused. REQUIRES:
  // `into` has room; `from` has bytes, or has_unsent().
  virtual absl::StatusOr<size_t> Read(std::span<const iovec> into) = 0;
  virtual absl::StatusOr<size_t> Write(std::span<const iovec> from) = 0;
};

// A stream without encryption. REQUIRES: the socket is connected and does not block.
std::unique_ptr<ByteStream> NewPlainStream(UniqueFd socket);

// Streams with TLS 1.3 (RFC 8446). Client and server must show a node's certificate. Before the client sends
// data, it checks that the name in the server's certificate is `expected`. The first Reads and Writes do the
// handshake. If `identity` still has the SSL_CTX of `session`, the handshake resumes `session` and exchanges
// no certificates. A resumed handshake still checks names and the conditions of CheckPeer.
absl::StatusOr<std::unique_ptr<ByteStream>> NewTlsServerStream(
    UniqueFd socket, std::shared_ptr<const security::Identity> identity);
absl::StatusOr<std::unique_ptr<ByteStream>> NewTlsClientStream(
    UniqueFd socket, std::shared_ptr<const security::Identity> identity, std::string expected,
    const TlsSession& session = {});

}  // namespace tensorcast::transport::tcp
