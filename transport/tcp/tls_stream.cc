#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/log/log.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "security/certificate.h"
#include "security/identity.h"
#include "security/name.h"
#include "transport/tcp/byte_stream.h"

namespace tensorcast::transport::tcp {
namespace {

// What is taken from the socket at once, or given to it: several records, for one system call, that stay in
// the cache meanwhile.
constexpr size_t kBatchBytes = size_t{256} << 10;
// The longest record, with its head and its authentication.
constexpr size_t kMaxRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH + 512;

// The socket, and encrypted bytes on their way to it and from it: OpenSSL writes record by record, and reads
// the head of each by itself. (OpenSSL can read ahead, too, but then moves all that it has read for each
// record.)
class BatchedSocket {
 public:
  explicit BatchedSocket(UniqueFd socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }
  size_t unsent() const { return unsent_.size() - begin_; }
  void Append(const char* bytes, size_t count) { unsent_.append(bytes, count); }
  // As recv, but for more than was asked for, which is kept.
  ssize_t Receive(char* into, size_t count) {
    if (unread_.empty()) {
      if (received_ == nullptr) received_ = std::make_unique_for_overwrite<char[]>(kBatchBytes);
      const ssize_t result = recv(fd(), received_.get(), kBatchBytes, 0);
      if (result <= 0) return result;
      unread_ = {received_.get(), static_cast<size_t>(result)};
    }
    const size_t taken = std::min(count, unread_.size());
    std::memcpy(into, unread_.data(), taken);
    unread_.remove_prefix(taken);
    return static_cast<ssize_t>(taken);
  }
  bool has_unread() const { return !unread_.empty(); }
  // As much as the socket takes.
  absl::Status Send() {
    while (unsent() > 0) {
      const ssize_t sent = send(fd(), unsent_.data() + begin_, unsent(), MSG_NOSIGNAL);
      if (sent < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return absl::OkStatus();
        return ErrnoStatus(errno, "write to", "a TLS connection");
      }
      begin_ += static_cast<size_t>(sent);
    }
    unsent_.clear();  // keeps its memory
    begin_ = 0;
    return absl::OkStatus();
  }

 private:
  const UniqueFd socket_;
  std::string unsent_;
  size_t begin_ = 0;  // what is before it was sent
  std::unique_ptr<char[]> received_;
  std::string_view unread_;  // of it
};

// It as OpenSSL sees it.
BatchedSocket& SocketOf(BIO* bio) { return *static_cast<BatchedSocket*>(BIO_get_data(bio)); }

// Takes all that OpenSSL writes: WriteRecords stops in time, so the buffer holds about one batch at most.
int WriteBio(BIO* bio, const char* bytes, int count) {
  SocketOf(bio).Append(bytes, count);
  return count;
}

int ReadBio(BIO* bio, char* bytes, int count) {
  const ssize_t result = SocketOf(bio).Receive(bytes, static_cast<size_t>(count));
  BIO_clear_retry_flags(bio);
  if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(result);
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

// How many bytes a second this processor encrypts by `cipher`; 0 where OpenSSL has it not.
double RateOf(const EVP_CIPHER* cipher) {
  constexpr int kRecords = 16;
  constexpr int kRounds = 3;  // the best of them: others use the processor, too
  const std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> context(EVP_CIPHER_CTX_new(),
                                                                                EVP_CIPHER_CTX_free);
  const std::array<unsigned char, EVP_MAX_KEY_LENGTH> key{};
  const std::array<unsigned char, EVP_MAX_IV_LENGTH> nonce{};
  std::vector<unsigned char> record(SSL3_RT_MAX_PLAIN_LENGTH);
  absl::Duration best = absl::InfiniteDuration();
  for (int round = 0; round < kRounds; ++round) {
    const SteadyTime start = SteadyNow();
    for (int i = 0; i < kRecords; ++i) {
      int bytes = 0;
      if (context == nullptr ||
          EVP_EncryptInit_ex(context.get(), cipher, nullptr, key.data(), nonce.data()) != 1 ||
          EVP_EncryptUpdate(context.get(), record.data(), &bytes, record.data(),
                            static_cast<int>(record.size())) != 1) {
        ERR_clear_error();
        return 0;
      }
    }
    best = std::min(best, SteadyNow() - start);
  }
  return kRecords * static_cast<double>(record.size()) / absl::ToDoubleSeconds(best);
}

// What a receiver proposes, the first before the others: a source takes its choice. AES-GCM is several times
// as fast as ChaCha20 where the processor has instructions for it, and several times slower where not. (With
// 128 bits: as strong as the keys of the certificates, and faster.)
const std::string& CipherSuites() {
  static const std::string suites = [] {
    const double aes = RateOf(EVP_aes_128_gcm());
    const double chacha = RateOf(EVP_chacha20_poly1305());
    LOG(INFO) << "pulls by TLS ask for " << (aes >= chacha ? "AES-128-GCM" : "ChaCha20-Poly1305") << ": "
              << OpenSSL_version(OPENSSL_VERSION) << " encrypts "
              << absl::StrFormat("%.1f GB/s by AES-128-GCM and %.1f GB/s by ChaCha20-Poly1305 on this host",
                                 aes / 1e9, chacha / 1e9);
    return absl::StrCat(aes >= chacha ? "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
                                      : "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256",
                        ":TLS_AES_256_GCM_SHA384");
  }();
  return suites;
}

// A state machine in two phases. Until `introduced_` each Read and Write goes on with the handshake and moves
// nothing of the caller's; the peer's name is checked at its end, before any byte of the protocol. Then bytes
// move as records. OpenSSL only ever sees BatchedSocket, so its "want write" does not occur: what it writes
// is kept, and Send gives it to the socket.
class TlsStream : public ByteStream {
 public:
  TlsStream(UniqueFd socket, std::shared_ptr<const security::Identity> identity, std::string expected)
      : socket_(std::move(socket)), identity_(std::move(identity)), expected_(std::move(expected)) {}
  // Without TLS's close_notify: every frame says how long it is, so a reader never takes a cut for an end.
  ~TlsStream() override { SSL_free(ssl_); }

  // `session`: of a client.
  absl::Status Start(bool server, const TlsSession& session) {
    context_ = server ? identity_->ServerContext() : identity_->ClientContext();
    ssl_ = SSL_new(context_.get());
    BIO* const bio = BIO_new(SocketMethod());
    if (ssl_ == nullptr || bio == nullptr) {
      BIO_free(bio);
      return absl::ResourceExhaustedError(
          absl::StrCat("open a TLS connection: OpenSSL cannot allocate the connection (", TakeErrors(),
                       "); give this process more memory"));
    }
    BIO_set_data(bio, &socket_);  // outlives it
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl_, bio, bio);
    SSL_set_mode(ssl_, SSL_MODE_ENABLE_PARTIAL_WRITE);  // a record a call
    // The other end closes without close_notify as well (see the destructor).
    SSL_set_options(ssl_, SSL_OP_IGNORE_UNEXPECTED_EOF);
    if (server) {
      // One ticket is enough: a receiver keeps the last session only. OpenSSL would send two.
      SSL_set_num_tickets(ssl_, 1);
      SSL_set_accept_state(ssl_);
    } else {
      // Here, where the context is chosen: the files may have changed since the caller looked for a session.
      if (session.context == context_) Resume(session.session);
      // Where it is refused, by a policy of the system's, OpenSSL's own list is as good.
      (void)SSL_set_ciphersuites(ssl_, CipherSuites().c_str());
      SSL_set_connect_state(ssl_);
    }
    return absl::OkStatus();
  }

  TlsSession session() const override {
    // It can be used from when the server's ticket has come, which it sends before anything else.
    const SSL_SESSION* const own = SSL_get0_session(ssl_);
    if (own == nullptr || SSL_SESSION_is_resumable(own) != 1) return {};
    // A copy: this connection's end, which is without a farewell, makes its own useless.
    return {.context = context_, .session = {SSL_SESSION_dup(own), SSL_SESSION_free}};
  }

  int fd() const override { return socket_.fd(); }
  uint32_t Events(bool has_output) const override {
    // During the introduction what has to be written waits for what the other end says: a socket that can be
    // written to must then not wake the loop.
    return (introduced_ && has_output) || has_unsent() ? EPOLLIN | EPOLLOUT : EPOLLIN;
  }
  bool has_buffered() const override {
    return !read_empty_ && (socket_.has_unread() || SSL_has_pending(ssl_) == 1);
  }
  bool has_unsent() const override { return socket_.unsent() > 0; }
  const std::string& peer() const override { return peer_; }
  absl::Status CheckPeer() const override {
    return introduced_ ? identity_->CheckPeer(certificate_) : absl::OkStatus();
  }

  absl::StatusOr<size_t> Read(std::span<const iovec> into) override {
    TC_RETURN_IF_ERROR(Introduce());
    if (!introduced_) return size_t{0};
    absl::StatusOr<size_t> moved = ReadRecords(into);
    // What TLS itself had to answer.
    TC_RETURN_IF_ERROR(socket_.Send());
    return moved;
  }

  absl::StatusOr<size_t> Write(std::span<const iovec> from) override {
    TC_RETURN_IF_ERROR(Introduce());
    TC_RETURN_IF_ERROR(socket_.Send());
    if (!introduced_ || has_unsent()) return size_t{0};
    TC_ASSIGN_OR_RETURN(const size_t moved, WriteRecords(from));
    TC_RETURN_IF_ERROR(socket_.Send());
    return moved;
  }

 private:
  // Where that does not work out, the two are introduced by their certificates.
  void Resume(const std::shared_ptr<SSL_SESSION>& session) {
    if (session == nullptr) return;
    // A copy: connections on other threads use the same one.
    SSL_SESSION* const own = SSL_SESSION_dup(session.get());
    (void)SSL_set_session(ssl_, own);
    SSL_SESSION_free(own);
  }

  absl::StatusOr<size_t> ReadRecords(std::span<const iovec> into) {
    size_t total = 0;
    for (const iovec& part : into) {
      for (size_t done = 0; done < part.iov_len;) {
        size_t moved = 0;
        const int result = Call([&] {
          return SSL_read_ex(ssl_, static_cast<char*>(part.iov_base) + done, part.iov_len - done, &moved);
        });
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

  // Until a batch stays with the socket.
  absl::StatusOr<size_t> WriteRecords(std::span<const iovec> from) {
    size_t total = 0;
    for (const iovec& part : from) {
      for (size_t done = 0; done < part.iov_len;) {
        if (socket_.unsent() + kMaxRecordBytes > kBatchBytes) {
          TC_RETURN_IF_ERROR(socket_.Send());
          if (has_unsent()) return total;
        }
        size_t moved = 0;
        const int result = Call([&] {
          return SSL_write_ex(ssl_, static_cast<const char*>(part.iov_base) + done, part.iov_len - done,
                              &moved);
        });
        if (result != 1) {
          TC_RETURN_IF_ERROR(Waiting(result));
          return total;
        }
        done += moved;
        total += moved;
      }
    }
    return total;
  }

  // Goes on with the handshake, and checks the peer's name when it is over.
  absl::Status Introduce() {
    if (introduced_) return absl::OkStatus();
    const int result = Call([this] { return SSL_do_handshake(ssl_); });
    const absl::Status waiting = result == 1 ? absl::OkStatus() : Waiting(result);
    // Also of one that failed: the other end is told why.
    const absl::Status sent = socket_.Send();
    TC_RETURN_IF_ERROR(waiting);
    TC_RETURN_IF_ERROR(sent);
    if (result != 1) return absl::OkStatus();
    TC_ASSIGN_OR_RETURN(certificate_, identity_->PeerOf(ssl_));
    const security::Name& peer = certificate_.name;
    // A chain that is good is not enough: the peer has to be a node, and the one that the grant names.
    if (!expected_.empty() && peer.ToString() != expected_) {
      return absl::PermissionDeniedError(absl::StrCat("open a TLS connection to ", expected_,
                                                      ": the certificate of the other end names ",
                                                      peer.ToString(), "; check the address"));
    }
    if (peer.role != security::Role::kNode) {
      return absl::PermissionDeniedError(
          absl::StrCat("open a TLS connection to a node: the certificate of the other end names ",
                       peer.ToString(), ", which is not a node; give that process a node's certificate"));
    }
    peer_ = peer.ToString();
    introduced_ = true;
    return absl::OkStatus();
  }

  // Of OpenSSL, after which Waiting finds this call's errors alone.
  template <typename Function>
  int Call(Function function) {
    ERR_clear_error();
    errno = 0;
    return function();
  }

  // OK when there is something to wait for, which is noted.
  absl::Status Waiting(int result) {
    const int error_number = errno;
    switch (SSL_get_error(ssl_, result)) {
      case SSL_ERROR_WANT_READ:
        read_empty_ = true;
        return absl::OkStatus();
      case SSL_ERROR_ZERO_RETURN:
        return absl::UnavailableError("the other end closed the connection");
      case SSL_ERROR_SYSCALL:
        if (error_number != 0) return ErrnoStatus(error_number, "use", "a TLS connection");
        return absl::UnavailableError("the other end closed the connection");
      default:
        return introduced_
                   ? absl::UnavailableError(absl::StrCat("use a TLS connection: ", TakeErrors()))
                   : absl::UnauthenticatedError(absl::StrCat("open a TLS connection: ", TakeErrors(),
                                                             "; check the certificates of both nodes"));
    }
  }

  BatchedSocket socket_;
  const std::shared_ptr<const security::Identity> identity_;
  const std::string expected_;
  std::shared_ptr<ssl_ctx_st> context_;  // of ssl_
  SSL* ssl_ = nullptr;
  security::Certificate certificate_;  // the peer's
  std::string peer_;                   // its name
  bool introduced_ = false;
  bool read_empty_ = false;  // the last Read took all that there was
};

absl::StatusOr<std::unique_ptr<ByteStream>> NewTlsStream(UniqueFd socket,
                                                         std::shared_ptr<const security::Identity> identity,
                                                         std::string expected, bool server,
                                                         const TlsSession& session) {
  auto stream = std::make_unique<TlsStream>(std::move(socket), std::move(identity), std::move(expected));
  TC_RETURN_IF_ERROR(stream->Start(server, session));
  return stream;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ByteStream>> NewTlsServerStream(
    UniqueFd socket, std::shared_ptr<const security::Identity> identity) {
  return NewTlsStream(std::move(socket), std::move(identity), "", /*server=*/true, /*session=*/{});
}

absl::StatusOr<std::unique_ptr<ByteStream>> NewTlsClientStream(
    UniqueFd socket, std::shared_ptr<const security::Identity> identity, std::string expected,
    const TlsSession& session) {
  return NewTlsStream(std::move(socket), std::move(identity), std::move(expected), /*server=*/false, session);
}

}  // namespace tensorcast::transport::tcp
