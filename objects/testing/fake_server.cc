#include "objects/testing/fake_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "absl/log/check.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "objects/http/url.h"

namespace tensorcast::objects::testing {

std::string FakeRequest::Header(std::string_view lower_case_name) const {
  for (const auto& [name, value] : headers) {
    if (name == lower_case_name) return value;
  }
  return "";
}

std::string FakeRequest::Query(std::string_view name) const {
  for (const std::string_view one : absl::StrSplit(query, '&')) {
    const std::pair<std::string_view, std::string_view> parts = absl::StrSplit(one, absl::MaxSplits('=', 1));
    if (parts.first == name) return DecodePercent(parts.second);
  }
  return "";
}

struct FakeServer::Tls {
  explicit Tls(const FakeTls& files) {
    CHECK_EQ(SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()), 1);
    CHECK_EQ(SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM), 1);
  }
  ~Tls() { SSL_CTX_free(context); }
  SSL_CTX* const context = SSL_CTX_new(TLS_server_method());
};

class FakeServer::Connection {
 public:
  Connection(int fd, Tls* tls) : fd_(fd) {
    if (tls == nullptr) return;
    ssl_ = SSL_new(tls->context);
    SSL_set_fd(ssl_, fd_);
  }
  ~Connection() {
    thread.join();
    SSL_free(ssl_);
    close(fd_);
  }

  bool Handshake() { return ssl_ == nullptr || SSL_accept(ssl_) == 1; }
  void Shutdown() { shutdown(fd_, SHUT_RDWR); }

  // One request; nullopt when the client has no more.
  std::optional<FakeRequest> Receive() {
    size_t end;
    while ((end = received_.find("\r\n\r\n")) == received_.npos) {
      if (!Fill()) return std::nullopt;
    }
    std::vector<std::string> lines = absl::StrSplit(received_.substr(0, end), "\r\n");
    received_.erase(0, end + 4);
    FakeRequest request;
    const std::vector<std::string> words = absl::StrSplit(lines[0], ' ');
    request.method = words[0];
    const std::pair<std::string, std::string> target = absl::StrSplit(words[1], absl::MaxSplits('?', 1));
    std::tie(request.path, request.query) = target;
    for (size_t i = 1; i < lines.size(); ++i) {
      const std::pair<std::string, std::string> header = absl::StrSplit(lines[i], absl::MaxSplits(": ", 1));
      request.headers.emplace_back(absl::AsciiStrToLower(header.first), header.second);
    }
    size_t body_bytes = 0;
    (void)absl::SimpleAtoi(request.Header("content-length"), &body_bytes);
    while (received_.size() < body_bytes) {
      if (!Fill()) return std::nullopt;
    }
    request.body = received_.substr(0, body_bytes);
    received_.erase(0, body_bytes);
    return request;
  }

  // false: the connection is over.
  bool Send(const FakeRequest& request, const FakeReply& reply) {
    std::string head = absl::StrCat("HTTP/1.1 ", reply.status, " -\r\n");
    for (const auto& [name, value] : reply.headers) absl::StrAppend(&head, name, ": ", value, "\r\n");
    absl::StrAppend(&head, "Content-Length: ", reply.body.size(), "\r\n\r\n");
    if (!Write(head)) return false;
    if (request.method == "HEAD") return true;
    std::string_view body = reply.body;
    if (reply.close_after.has_value()) body = body.substr(0, *reply.close_after);
    while (!body.empty()) {
      if (reply.before_piece) reply.before_piece();
      const std::string_view piece = body.substr(0, reply.piece_bytes);
      if (!Write(piece)) return false;
      body.remove_prefix(piece.size());
    }
    if (reply.reset) {
      const sockaddr nothing{.sa_family = AF_UNSPEC,
                             .sa_data = {}};  // Linux resets a connection that it leaves
      connect(fd_, &nothing, sizeof(nothing));
    }
    return !reply.close_after.has_value();
  }

  std::thread thread;

 private:
  bool Fill() {
    char buffer[16384];
    const ssize_t size =
        ssl_ != nullptr ? SSL_read(ssl_, buffer, sizeof(buffer)) : recv(fd_, buffer, sizeof(buffer), 0);
    if (size <= 0) return false;
    received_.append(buffer, static_cast<size_t>(size));
    return true;
  }
  bool Write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t size = ssl_ != nullptr ? SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size()))
                                           : send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (size <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(size));
    }
    return true;
  }

  const int fd_;
  SSL* ssl_ = nullptr;
  std::string received_;
};

FakeServer::FakeServer(Handler handler, const FakeTls* tls)
    : handler_(std::move(handler)), tls_(tls == nullptr ? nullptr : std::make_unique<Tls>(*tls)) {
  if (tls_ != nullptr) std::signal(SIGPIPE, SIG_IGN);  // SSL_write cannot leave it out
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof(address);
  CHECK_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
  CHECK_EQ(listen(listener_, 64), 0);
  CHECK_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
  port_ = ntohs(address.sin_port);
  accepting_ = std::thread([this] { Accept(); });
}

FakeServer::~FakeServer() {
  shutdown(listener_, SHUT_RDWR);
  accepting_.join();
  close(listener_);
  std::list<Connection> connections;
  {
    absl::MutexLock lock(&mutex_);
    for (Connection& connection : connections_) connection.Shutdown();
    connections.swap(connections_);
  }
}

void FakeServer::Accept() {
  while (true) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    absl::MutexLock lock(&mutex_);
    Connection& connection = connections_.emplace_back(fd, tls_.get());
    connection.thread = std::thread([this, &connection] { Serve(connection); });
  }
}

void FakeServer::Serve(Connection& connection) {
  if (connection.Handshake()) {
    while (const std::optional<FakeRequest> request = connection.Receive()) {
      {
        absl::MutexLock lock(&mutex_);
        requests_.push_back(*request);
      }
      FakeReply reply;
      {
        absl::MutexLock lock(&handler_mutex_);
        reply = handler_(*request);
      }
      if (!connection.Send(*request, reply)) break;
    }
  }
  connection.Shutdown();
}

std::string FakeServer::url() const {
  return absl::StrCat(tls_ == nullptr ? "http" : "https", "://127.0.0.1:", port_);
}

int FakeServer::connections() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(connections_.size());
}

std::vector<FakeRequest> FakeServer::requests() const {
  absl::MutexLock lock(&mutex_);
  return requests_;
}

FakeReply ServeBytes(const FakeRequest& request, std::string_view bytes, std::string_view etag) {
  const std::string if_match = request.Header("if-match");
  if (!if_match.empty() && if_match != etag) return {.status = 412};
  FakeReply reply{.headers = {{"ETag", std::string(etag)}, {"Accept-Ranges", "bytes"}}};
  std::string range = request.Header("range");
  std::string_view text = range;
  if (!absl::ConsumePrefix(&text, "bytes=")) {
    reply.body = bytes;
    return reply;
  }
  const std::pair<std::string_view, std::string_view> ends = absl::StrSplit(text, '-');
  size_t first = 0, last = 0;
  CHECK(absl::SimpleAtoi(ends.first, &first) && absl::SimpleAtoi(ends.second, &last)) << range;
  if (first >= bytes.size()) return {.status = 416};
  last = std::min(last, bytes.size() - 1);
  reply.status = 206;
  reply.headers.emplace_back("Content-Range", absl::StrCat("bytes ", first, "-", last, "/", bytes.size()));
  reply.body = bytes.substr(first, last - first + 1);
  return reply;
}

}  // namespace tensorcast::objects::testing
