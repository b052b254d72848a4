// A small HTTP/1.1 server for GET and HEAD, with one request and one thread per connection. The number of
// connections, and the length and time of a head, are limited.
//
// Thread-safe. The handler is called on many threads at once. The destructor ends all connections and waits
// for their threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/address.h"
#include "base/posix/unique_fd.h"
#include "cli/dashboard/connection.h"
#include "cli/dashboard/http_request.h"

namespace tensorcast::dashboard {

struct HttpServerOptions {
  HostPort listen;  // port 0: the system chooses one
  TlsFiles tls;
  size_t max_requests = 16;  // max requests at a time; further requests get 503
  size_t max_streams = 64;
  size_t max_refusals = 16;  // max further connections that get a refusal; connections beyond that are closed
  absl::Duration head_timeout = absl::Seconds(5);    // for the handshake, and again for the head
  absl::Duration write_timeout = absl::Seconds(20);  // for a body, or for one event
};

class HttpServer {
 public:
  using Handler = std::function<HttpResponse(const HttpRequest& request, bool has_client_certificate)>;

  // ALREADY_EXISTS when the port is in use; INVALID_ARGUMENT for TLS files that cannot be used.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Listen(const HttpServerOptions& options);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const { return port_; }
  bool tls() const { return tls_ != nullptr; }
  // The names in the certificate; empty without TLS.
  std::vector<std::string> CertificateNames() const;
  // Starts to accept connections. Call this once. RESOURCE_EXHAUSTED if no thread can be started.
  absl::Status Serve(Handler handler);

 private:
  struct Client {
    explicit Client(UniqueFd socket) : connection(std::move(socket)) {}
    Connection connection;
    std::thread thread;
    bool ended = false;  // guarded by mutex_
  };
  // Takes one of `max` slots while it lives.
  class Place;

  HttpServer(const HttpServerOptions& options, UniqueFd socket, uint16_t port,
             std::unique_ptr<TlsContext> tls);
  void Accept();
  void StartClient(UniqueFd socket) ABSL_LOCKS_EXCLUDED(mutex_);
  void ServeClient(Connection& connection);
  // Reads the head, up to its empty line. Returns false if the whole head did not arrive; sets `refusal` if
  // the peer should get a refusal.
  bool ReadHead(Connection& connection, std::string* head, HttpResponse* refusal);
  void Answer(Connection& connection, const HttpRequest& request);
  void Write(Connection& connection, const HttpResponse& response, bool with_body);

  const HttpServerOptions options_;
  const UniqueFd socket_;
  const uint16_t port_;
  const std::unique_ptr<TlsContext> tls_;
  Handler handler_;
  std::thread acceptor_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::list<Client> clients_ ABSL_GUARDED_BY(mutex_);
  std::atomic<size_t> requests_ = 0;
  std::atomic<size_t> streams_ = 0;
};

}  // namespace tensorcast::dashboard
