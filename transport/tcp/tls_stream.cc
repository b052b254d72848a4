#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "security/certificate.h"
#include "security/identity.h"
#include "security/name.h"
#include "transport/tcp/byte_stream.h"

namespace tensorcast::transport::tcp {
namespace {

// What is taken from the socket at once: a few records, for one system call.
constexpr size_t kReadAheadBytes = size_t{128} << 10;

// A socket as OpenSSL sees it. OpenSSL's own would raise SIGPIPE when the other end is gone.
int SocketOf(BIO* bio) { return static_cast<const UniqueFd*>(BIO_get_data(bio))->get(); }

int MovedByBio(BIO* bio, ssize_t result, int retry) {
  BIO_clear_retry_flags(bio);
  if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    BIO_set_flags(bio, retry | BIO_FLAGS_SHOULD_RETRY);
  }
  return static_cast<int>(result);
}

int WriteBio(BIO* bio, const char* bytes, int count) {
  return MovedByBio(bio, send(SocketOf(bio), bytes, count, MSG_NOSIGNAL), BIO_FLAGS_WRITE);
}

int ReadBio(BIO* bio, char* bytes, int count) {
  return MovedByBio(bio, recv(SocketOf(bio), bytes, count, 0), BIO_FLAGS_READ);
}

long ControlBio(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

const BIO_METHOD* SocketMethod() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "tensorcast socket");
    BIO_meth_set_write(made, WriteBio);
    BIO_meth_set_read(made, ReadBio);
    BIO_meth_set_ctrl(made, ControlBio);
    return made;
  }();
  return method;
}

std::string TakeErrors() {
  std::array<char, 256> text{};
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  if (error == 0) return "no reason given";
  ERR_error_string_n(error, text.data(), text.size());
  return text.data();
}

class TlsStream : public ByteStream {
 public:
  TlsStream(UniqueFd socket, std::shared_ptr<const security::Identity> identity, std::string expected)
      : socket_(std::move(socket)), identity_(std::move(identity)), expected_(std::move(expected)) {}
  // Without TLS's word of farewell: every frame says how long it is, so nobody takes a cut for an end.
  ~TlsStream() override { SSL_free(ssl_); }

  absl::Status Start(bool server) {
    const std::shared_ptr<ssl_ctx_st> context =
        server ? identity_->ServerContext() : identity_->ClientContext();
    ssl_ = SSL_new(context.get());
    BIO* const bio = BIO_new(SocketMethod());
    if (ssl_ == nullptr || bio == nullptr) {
      BIO_free(bio);
      return absl::ResourceExhaustedError(absl::StrCat("no TLS connection: ", TakeErrors()));
    }
    BIO_set_data(bio, const_cast<UniqueFd*>(&socket_));  // outlives it; only read
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl_, bio, bio);
    SSL_set_mode(ssl_, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_set_options(ssl_, SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_set_read_ahead(ssl_, 1);
    SSL_set_default_read_buffer_len(ssl_, kReadAheadBytes);
    if (server) {
      SSL_set_accept_state(ssl_);
    } else {
      SSL_set_connect_state(ssl_);
    }
    return absl::OkStatus();
  }

  int fd() const override { return socket_.get(); }
  uint32_t Events(bool has_output) const override {
    // During the introduction what has to be written waits for what the other end says: a socket that can be
    // written to must then not wake anybody.
    return (introduced_ ? has_output : wants_output_) ? EPOLLIN | EPOLLOUT : EPOLLIN;
  }
  bool has_buffered() const override { return !read_empty_ && SSL_has_pending(ssl_) == 1; }
  const std::string& peer() const override { return peer_; }
  absl::Status CheckPeer() const override {
    return introduced_ ? identity_->CheckPeer(certificate_) : absl::OkStatus();
  }

  absl::StatusOr<size_t> Read(std::span<const iovec> into) override {
    return Move(into, [this](const iovec& part, size_t done, size_t& moved) {
      return SSL_read_ex(ssl_, static_cast<char*>(part.iov_base) + done, part.iov_len - done, &moved);
    });
  }

  absl::StatusOr<size_t> Write(std::span<const iovec> from) override {
    return Move(from, [this](const iovec& part, size_t done, size_t& moved) {
      return SSL_write_ex(ssl_, static_cast<const char*>(part.iov_base) + done, part.iov_len - done, &moved);
    });
  }

 private:
  // Moves a record at a time, until the parts or the socket are at their end.
  template <typename Step>
  absl::StatusOr<size_t> Move(std::span<const iovec> parts, Step step) {
    TC_RETURN_IF_ERROR(Introduce());
    if (!introduced_) return size_t{0};
    size_t total = 0;
    for (const iovec& part : parts) {
      for (size_t done = 0; done < part.iov_len;) {
        size_t moved = 0;
        ERR_clear_error();
        errno = 0;
        const int result = step(part, done, moved);
        if (result != 1) {
          const absl::Status status = Waiting(result);
          // What was moved counts; the next call finds the error again.
          if (status.ok() || total > 0) return total;
          return status;
        }
        read_empty_ = false;
        done += moved;
        total += moved;
      }
    }
    return total;
  }

  // Goes on with the handshake, and looks at who is there when it is over.
  absl::Status Introduce() {
    if (introduced_) return absl::OkStatus();
    ERR_clear_error();
    errno = 0;
    const int result = SSL_do_handshake(ssl_);
    if (result != 1) return Waiting(result);
    TC_ASSIGN_OR_RETURN(certificate_, identity_->PeerOf(ssl_));
    const security::Name& peer = certificate_.name;
    if (peer.role != security::Role::kNode || (!expected_.empty() && peer.ToString() != expected_)) {
      return absl::PermissionDeniedError(absl::StrCat(peer.ToString(),
                                                      " is at the other end, which should be ",
                                                      expected_.empty() ? "a node" : expected_));
    }
    peer_ = peer.ToString();
    introduced_ = true;
    return absl::OkStatus();
  }

  // OK when there is something to wait for, which is noted.
  absl::Status Waiting(int result) {
    const int error_number = errno;
    switch (SSL_get_error(ssl_, result)) {
      case SSL_ERROR_WANT_READ:
        read_empty_ = true;
        wants_output_ = false;
        return absl::OkStatus();
      case SSL_ERROR_WANT_WRITE:
        wants_output_ = true;
        return absl::OkStatus();
      case SSL_ERROR_ZERO_RETURN:
        return absl::UnavailableError("the other end closed the connection");
      case SSL_ERROR_SYSCALL:
        if (error_number != 0) return ErrnoStatus(error_number, "using", "a TLS connection");
        return absl::UnavailableError("the other end closed the connection");
      default:
        return introduced_ ? absl::UnavailableError(absl::StrCat("the TLS connection broke: ", TakeErrors()))
                           : absl::UnauthenticatedError(absl::StrCat("no TLS connection: ", TakeErrors()));
    }
  }

  const UniqueFd socket_;
  const std::shared_ptr<const security::Identity> identity_;
  const std::string expected_;
  SSL* ssl_ = nullptr;
  security::Certificate certificate_;  // the peer's
  std::string peer_;                   // its name
  bool introduced_ = false;
  bool wants_output_ = false;  // the introduction waits for room in the socket
  bool read_empty_ = false;    // the last Read took all that there was
};

absl::StatusOr<std::unique_ptr<ByteStream>> NewTlsStream(UniqueFd socket,
                                                         std::shared_ptr<const security::Identity> identity,
                                                         std::string expected, bool server) {
  auto stream = std::make_unique<TlsStream>(std::move(socket), std::move(identity), std::move(expected));
  TC_RETURN_IF_ERROR(stream->Start(server));
  return stream;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ByteStream>> NewTlsServerStream(
    UniqueFd socket, std::shared_ptr<const security::Identity> identity) {
  return NewTlsStream(std::move(socket), std::move(identity), "", /*server=*/true);
}

absl::StatusOr<std::unique_ptr<ByteStream>> NewTlsClientStream(
    UniqueFd socket, std::shared_ptr<const security::Identity> identity, std::string expected) {
  return NewTlsStream(std::move(socket), std::move(identity), std::move(expected), /*server=*/false);
}

}  // namespace tensorcast::transport::tcp
