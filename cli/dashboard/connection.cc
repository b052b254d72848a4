#include "cli/dashboard/connection.h"

#include <arpa/inet.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "security/certificate.h"

namespace tensorcast::dashboard {
namespace {

absl::Status TlsError(std::string_view flag, const std::string& path) {
  return absl::InvalidArgumentError(absl::StrCat("listen with TLS: ", flag, " ", path, ": ",
                                                 security::TakeOpenSslErrors(),
                                                 "; check that the file is readable PEM, and that --key "
                                                 "is the key of --cert"));
}

// A certificate of an authority is enough; what it is called plays no part.
int AcceptVerified(int verified, X509_STORE_CTX* /*store*/) { return verified; }

}  // namespace

absl::StatusOr<std::unique_ptr<TlsContext>> TlsContext::Load(const TlsFiles& files) {
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (context == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("listen with TLS: OpenSSL cannot be set up: ", security::TakeOpenSslErrors(),
                     "; check the configuration of OpenSSL on this host"));
  }
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  // Without sessions that are taken up again, each connection's certificate is checked anew.
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  if (SSL_CTX_use_certificate_chain_file(context.get(), files.certificate.c_str()) != 1) {
    return TlsError("--cert", files.certificate);
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return TlsError("--key", files.key);
  }
  if (!files.client_ca.empty()) {
    if (SSL_CTX_load_verify_locations(context.get(), files.client_ca.c_str(), nullptr) != 1) {
      return TlsError("--client-ca", files.client_ca);
    }
    SSL_CTX_set_client_CA_list(context.get(), SSL_load_client_CA_file(files.client_ca.c_str()));
    // Asked for and not demanded: a browser without one logs in with a token.
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, AcceptVerified);
  }
  return std::unique_ptr<TlsContext>(new TlsContext(context));
}

std::vector<std::string> TlsContext::Names() const {
  std::vector<std::string> names;
  X509* certificate = SSL_CTX_get0_certificate(context_.get());
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> all(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)),
      GENERAL_NAMES_free);
  for (int i = 0; i < (all == nullptr ? 0 : sk_GENERAL_NAME_num(all.get())); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(all.get(), i);
    if (name->type == GEN_DNS) {
      const ASN1_STRING* text = name->d.dNSName;
      names.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                         ASN1_STRING_length(text));
    } else if (name->type == GEN_IPADD) {
      const int family = ASN1_STRING_length(name->d.iPAddress) == 4 ? AF_INET : AF_INET6;
      char text[INET6_ADDRSTRLEN] = "";
      if (inet_ntop(family, ASN1_STRING_get0_data(name->d.iPAddress), text, sizeof(text)) != nullptr) {
        names.emplace_back(text);
      }
    }
  }
  return names;
}

Connection::Connection(UniqueFd socket) : socket_(std::move(socket)) {}
Connection::~Connection() = default;

bool Connection::Wait(short events, SteadyTime deadline) const {
  // The time is rounded up, since a wait of 0 ms would turn the last moment into a busy loop.
  const int64_t left = absl::ToInt64Milliseconds(absl::Ceil(TimeLeft(deadline), absl::Milliseconds(1)));
  pollfd polled{.fd = socket_.get(), .events = events, .revents = 0};
  return left > 0 && poll(&polled, 1, static_cast<int>(std::min<int64_t>(left, INT_MAX))) > 0;
}

// OpenSSL's errors are queued per thread, and SSL_get_error reads that queue. An error that stays there would
// make a later, successful call look failed.
template <class Call>
int Connection::Repeat(SteadyTime deadline, Call call) {
  while (true) {
    const int result = call();
    if (result > 0) return result;
    // A call that reads may have to write first, and the other way round, since TLS has messages of its own.
    const int error = SSL_get_error(tls_.get(), result);
    const short events = error == SSL_ERROR_WANT_READ ? POLLIN : error == SSL_ERROR_WANT_WRITE ? POLLOUT : 0;
    if (events == 0 || !Wait(events, deadline)) {
      security::TakeOpenSslErrors();  // so that the next connection of this thread does not find them
      return 0;
    }
  }
}

bool Connection::Start(const TlsContext* tls, SteadyTime deadline) {
  if (tls == nullptr) return true;
  tls_ = {SSL_new(tls->get()), SSL_free};
  if (tls_ == nullptr || SSL_set_fd(tls_.get(), socket_.get()) != 1) return false;
  return Repeat(deadline, [&] { return SSL_accept(tls_.get()); }) == 1;
}

bool Connection::HasClientCertificate() const {
  return tls_ != nullptr && SSL_get0_peer_certificate(tls_.get()) != nullptr &&
         SSL_get_verify_result(tls_.get()) == X509_V_OK;
}

size_t Connection::Read(std::span<char> buffer, SteadyTime deadline) {
  if (tls_ != nullptr) {
    return Repeat(deadline,
                  [&] { return SSL_read(tls_.get(), buffer.data(), static_cast<int>(buffer.size())); });
  }
  while (Wait(POLLIN, deadline)) {
    const ssize_t got = recv(socket_.get(), buffer.data(), buffer.size(), 0);
    // A result of 0 means that the peer has ended.
    if (got >= 0) return got;
    if (errno != EAGAIN && errno != EINTR) return 0;
  }
  return 0;
}

bool Connection::Write(std::string_view bytes, SteadyTime deadline) {
  while (!bytes.empty()) {
    ssize_t sent = 0;
    if (tls_ != nullptr) {
      // OpenSSL demands that a repeated SSL_write has the same buffer and length as the call that did not
      // finish. Repeat gives it the same `part`.
      const int part = static_cast<int>(std::min<size_t>(bytes.size(), 16 << 10));  // a record of TLS
      sent = Repeat(deadline, [&] { return SSL_write(tls_.get(), bytes.data(), part); });
      if (sent == 0) return false;
    } else {
      if (!Wait(POLLOUT, deadline)) return false;
      sent = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
      sent = std::max<ssize_t>(sent, 0);
    }
    bytes.remove_prefix(sent);
  }
  return true;
}

bool Connection::IsOpen() const {
  // What the peer sends does not matter, only whether it has gone.
  pollfd polled{.fd = socket_.get(), .events = POLLRDHUP, .revents = 0};
  return poll(&polled, 1, 0) == 0;
}

void Connection::Finish(SteadyTime deadline) {
  if (tls_ != nullptr) SSL_shutdown(tls_.get());
  shutdown(socket_.get(), SHUT_WR);
  char unread[4096];
  // The reading is bounded in bytes, too: a peer that never stops sending must not keep the thread until the
  // deadline.
  for (int i = 0; i < 256 && Wait(POLLIN, deadline); ++i) {
    const ssize_t got = recv(socket_.get(), unread, sizeof(unread), 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return;
  }
}

// A thread that waits in a poll wakes up. The descriptor stays open, so that its number cannot become another
// file's before the owner thread closes it.
void Connection::Interrupt() { shutdown(socket_.get(), SHUT_RDWR); }

}  // namespace tensorcast::dashboard
