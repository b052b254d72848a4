// One accepted connection, unencrypted or with TLS. Reads and writes block, at most until their deadline.
//
// Belongs to one thread, except Interrupt, which is thread-safe. Functions return false for errors of the
// peer.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/posix/unique_fd.h"
#include "base/steady_time.h"

// OpenSSL's SSL_CTX and SSL.
struct ssl_ctx_st;
struct ssl_st;

namespace tensorcast::dashboard {

// Paths of PEM files.
struct TlsFiles {
  std::string certificate;  // followed by intermediate certificates; empty: no TLS
  std::string key;
  std::string client_ca;  // the authorities of client certificates; empty: no client certificates
};

// The TLS configuration of connections. Thread-safe.
class TlsContext {
 public:
  // INVALID_ARGUMENT, naming the flag, for files that are invalid or do not fit together.
  static absl::StatusOr<std::unique_ptr<TlsContext>> Load(const TlsFiles& files);
  // The DNS names and addresses in the certificate.
  std::vector<std::string> Names() const;
  ssl_ctx_st* get() const { return context_.get(); }

 private:
  explicit TlsContext(std::shared_ptr<ssl_ctx_st> context) : context_(std::move(context)) {}
  const std::shared_ptr<ssl_ctx_st> context_;
};

class Connection {
 public:
  explicit Connection(UniqueFd socket);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Does the TLS handshake; with `tls` null, does nothing. False when the handshake failed.
  bool Start(const TlsContext* tls, SteadyTime deadline);
  // Whether the peer presented a certificate of a trusted authority.
  bool HasClientCertificate() const;

  // Returns the number of bytes read. 0 if the peer closed the connection or failed, or if the deadline
  // passed.
  size_t Read(std::span<char> buffer, SteadyTime deadline);
  // Writes all bytes, or returns false.
  bool Write(std::string_view bytes, SteadyTime deadline);
  // True until the peer closes the connection or the connection fails.
  bool IsOpen() const;
  // Ends the answer, and reads the peer's remaining bytes until the peer closes. Without this the peer could
  // lose the answer.
  void Finish(SteadyTime deadline);
  // Makes running and later reads and writes fail.
  void Interrupt();

 private:
  bool Wait(short events, SteadyTime deadline) const;
  // Repeats an OpenSSL call until it is done, and returns its result. Returns 0 on failure.
  template <class Call>
  int Repeat(SteadyTime deadline, Call call);

  const UniqueFd socket_;
  std::shared_ptr<ssl_st> tls_;
};

}  // namespace tensorcast::dashboard
