#include "cli/dashboard/http_server.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/start_thread.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast::dashboard {
namespace {

constexpr int kBacklog = 128;
// A connection that was answered is read until its peer closes, and for at most this time.
constexpr absl::Duration kDrainTimeout = absl::Seconds(1);

// What keeps a browser from running, embedding or passing on anything that is not of this server.
constexpr std::string_view kSecurityHeaders =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
    "Connection: close\r\n";

std::string_view ReasonOf(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 303:
      return "See Other";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 414:
      return "URI Too Long";
    case 431:
      return "Request Header Fields Too Large";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Error";
  }
}

absl::StatusOr<UniqueFd> ListeningSocket(const SocketAddress& address, const std::string& text) {
  UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return ErrnoStatus(errno, "create", "a TCP socket");
  // A port that a dashboard had before can be taken at once.
  const int yes = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(fd.get(), address.get(), address.length) != 0 || listen(fd.get(), kBacklog) != 0) {
    if (errno == EADDRINUSE) {
      return absl::AlreadyExistsError(absl::StrCat(
          "listen on ", text,
          ": another process listens there; stop that process, or choose another port with --listen"));
    }
    return ErrnoStatus(errno, "listen on", text);
  }
  return fd;
}

absl::StatusOr<uint16_t> PortOfSocket(const UniqueFd& socket) {
  SocketAddress bound;
  bound.length = sizeof(bound.storage);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.length) != 0) {
    return ErrnoStatus(errno, "get the address of", "a listening socket");
  }
  return PortOf(bound.storage);
}

class StreamOf final : public ResponseStream {
 public:
  StreamOf(Connection& connection, absl::Duration timeout) : connection_(connection), timeout_(timeout) {}
  bool Write(std::string_view bytes) override { return connection_.Write(bytes, SteadyNow() + timeout_); }
  bool IsOpen() const override { return connection_.IsOpen(); }

 private:
  Connection& connection_;
  const absl::Duration timeout_;
};

HttpResponse Busy() {
  HttpResponse response = PlainResponse(503, "the dashboard serves too many connections; try again soon\n");
  response.headers.emplace_back("Retry-After", "2");
  return response;
}

}  // namespace

// Counts first and takes it back where that was too many, so that two threads cannot both have the last
// place.
class HttpServer::Place {
 public:
  Place(std::atomic<size_t>& taken, size_t max) : taken_(taken), has_(taken++ < max) {
    if (!has_) --taken_;
  }
  ~Place() {
    if (has_) --taken_;
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  explicit operator bool() const { return has_; }

 private:
  std::atomic<size_t>& taken_;
  const bool has_;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(const HttpServerOptions& options) {
  std::unique_ptr<TlsContext> tls;
  if (!options.tls.certificate.empty()) {
    TC_ASSIGN_OR_RETURN(tls, TlsContext::Load(options.tls));
  }
  const std::string text = FormatHostPort(options.listen);
  TC_ASSIGN_OR_RETURN(const SocketAddress address, ResolveAddress(options.listen));
  TC_ASSIGN_OR_RETURN(UniqueFd socket, ListeningSocket(address, text));
  TC_ASSIGN_OR_RETURN(const uint16_t port, PortOfSocket(socket));
  return std::unique_ptr<HttpServer>(new HttpServer(options, std::move(socket), port, std::move(tls)));
}

HttpServer::HttpServer(const HttpServerOptions& options, UniqueFd socket, uint16_t port,
                       std::unique_ptr<TlsContext> tls)
    : options_(options), socket_(std::move(socket)), port_(port), tls_(std::move(tls)) {}

HttpServer::~HttpServer() {
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
    for (Client& client : clients_) client.connection.Interrupt();
  }
  shutdown(socket_.get(), SHUT_RDWR);  // wakes the acceptor
  if (acceptor_.joinable()) acceptor_.join();
  // The acceptor has ended: no more clients come, and only this thread changes the list.
  std::list<Client> clients;
  {
    const absl::MutexLock lock(&mutex_);
    clients.swap(clients_);
  }
  for (Client& client : clients) client.thread.join();
}

std::vector<std::string> HttpServer::CertificateNames() const {
  return tls_ == nullptr ? std::vector<std::string>() : tls_->Names();
}

absl::Status HttpServer::Serve(Handler handler) {
  handler_ = std::move(handler);
  TC_ASSIGN_OR_RETURN(
      acceptor_, StartThread(absl::StrCat("serve ", FormatHostPort(options_.listen)), [this] { Accept(); }));
  return absl::OkStatus();
}

// Runs on the acceptor thread, which is the only one that adds to or removes from `clients_` before the
// destructor.
void HttpServer::Accept() {
  while (true) {
    // The socket does not block, so the waiting is done here. The destructor ends it by a shutdown.
    pollfd polled{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    poll(&polled, 1, -1);
    UniqueFd client(accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    // Taking the lock may change errno.
    const int error = errno;
    if (const absl::MutexLock lock(&mutex_); stopping_) return;
    if (client) {
      StartClient(std::move(client));
    } else if (error != EAGAIN && error != EINTR && error != ECONNABORTED) {
      // No descriptor is free: the connection stays in the backlog, and poll would return at once.
      poll(nullptr, 0, 100);
    }
  }
}

void HttpServer::StartClient(UniqueFd socket) {
  const absl::MutexLock lock(&mutex_);
  if (stopping_) return;  // the destructor would not end it
  for (auto client = clients_.begin(); client != clients_.end();) {
    // Such a thread has released what it held: its join does not wait.
    if (client->ended) client->thread.join();
    client = client->ended ? clients_.erase(client) : std::next(client);
  }
  // Each connection has a thread, so their number is bounded. Beyond it they are closed unanswered.
  if (clients_.size() >= options_.max_requests + options_.max_streams + options_.max_refusals) return;
  Client& client = clients_.emplace_back(std::move(socket));
  try {
    client.thread = std::thread([this, &client] {
      // `ended` is set with the mutex held, since the acceptor joins and removes the client when it sees it.
      ServeClient(client.connection);
      const absl::MutexLock ended(&mutex_);
      // The descriptor is closed only when the acceptor removes the client, which happens at a later
      // connection. The shutdown ends the connection for the peer now.
      client.connection.Interrupt();
      client.ended = true;
    });
  } catch (const std::system_error&) {
    clients_.pop_back();  // no thread can be had: the connection is closed
  }
}

// The life of a connection, on its own thread: handshake, head, one answer (or a refusal), then a short
// drain. Each step has a deadline of its own, so the thread ends however slowly the peer sends and reads.
void HttpServer::ServeClient(Connection& connection) {
  // OpenSSL writes without MSG_NOSIGNAL.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  // The handshake has the time of a head; then the head has it anew.
  const SteadyTime deadline = SteadyNow() + options_.head_timeout;
  if (!connection.Start(tls_.get(), deadline)) return;
  std::string head;
  HttpRequest request;
  HttpResponse refusal;
  if (ReadHead(connection, &head, &refusal) && ParseHead(head, &request, &refusal)) {
    Answer(connection, request);
    // Status 200 means that no refusal was set: no byte of a request came.
  } else if (refusal.status != 200) {
    Write(connection, refusal, /*with_body=*/true);
  }
  connection.Finish(SteadyNow() + kDrainTimeout);
}

bool HttpServer::ReadHead(Connection& connection, std::string* head, HttpResponse* refusal) {
  const SteadyTime deadline = SteadyNow() + options_.head_timeout;
  std::array<char, 4096> buffer;
  while (true) {
    const size_t end = head->find("\r\n\r\n");
    if (end != std::string::npos) {
      head->resize(end + 4);
      return true;
    }
    if (head->size() >= kMaxHeadBytes) {
      *refusal = PlainResponse(431, absl::StrCat("the request has more than ", kMaxHeadBytes,
                                                 " bytes of headers; send fewer bytes\n"));
      return false;
    }
    const size_t got = connection.Read(buffer, deadline);
    if (got == 0) {
      // A connection that a browser opened in advance and does not use needs no answer.
      if (!head->empty()) {
        *refusal = PlainResponse(408, "the request did not arrive in time; send the request again\n");
      }
      return false;
    }
    head->append(buffer.data(), got);
  }
}

void HttpServer::Answer(Connection& connection, const HttpRequest& request) {
  HttpResponse response;
  {
    // The place is free again when this block ends, before a stream begins: a stream may last for hours.
    const Place place(requests_, options_.max_requests);
    response = place ? handler_(request, connection.HasClientCertificate()) : Busy();
    if (response.stream == nullptr || request.head) {
      Write(connection, response, !request.head);
      return;
    }
  }
  // A stream takes a place of its own kind, so that streams never keep requests out.
  const Place place(streams_, options_.max_streams);
  if (!place) {
    Write(connection, Busy(), /*with_body=*/true);
    return;
  }
  Write(connection, response, /*with_body=*/true);
  StreamOf stream(connection, options_.write_timeout);
  response.stream(stream);
}

void HttpServer::Write(Connection& connection, const HttpResponse& response, bool with_body) {
  std::string text =
      absl::StrCat("HTTP/1.1 ", response.status, " ", ReasonOf(response.status), "\r\n", kSecurityHeaders);
  if (!response.content_type.empty()) absl::StrAppend(&text, "Content-Type: ", response.content_type, "\r\n");
  for (const auto& [name, value] : response.headers) absl::StrAppend(&text, name, ": ", value, "\r\n");
  // A stream has no length: it ends with the connection.
  if (response.stream == nullptr && response.status != 304) {
    absl::StrAppend(&text, "Content-Length: ", response.body.size(), "\r\n");
  }
  absl::StrAppend(&text, "\r\n");
  if (with_body) text += response.body;
  connection.Write(text, SteadyNow() + options_.write_timeout);
}

}  // namespace tensorcast::dashboard
