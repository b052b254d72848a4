// The dashboard's server: serves the login, the pages, the documents and their events at one address.
// README.md describes the HTTP interface.
//
// Thread-safe. The destructor ends every connection.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/dashboard/access.h"
#include "cli/dashboard/event_hub.h"
#include "cli/dashboard/http_server.h"

namespace tensorcast::dashboard {

// A file of page/, in this program's memory.
struct PageFile {
  std::string_view name;  // its path below page/
  std::string_view content;
  std::string_view hash;  // of the content, in hexadecimal digits
};
std::span<const PageFile> EmbeddedPage();

class Dashboard {
 public:
  struct Options {
    HttpServerOptions server;
    std::span<const PageFile> page;
    DocumentSource documents;
    absl::Duration min_interval = absl::Seconds(1);  // between two polls of a view
  };
  // INVALID_ARGUMENT for an address beyond loopback without TLS. Other errors are those of
  // HttpServer::Listen and HttpServer::Serve.
  static absl::StatusOr<std::unique_ptr<Dashboard>> Start(Options options);
  Dashboard(const Dashboard&) = delete;
  Dashboard& operator=(const Dashboard&) = delete;

  uint16_t port() const { return server_->port(); }
  // A new URL that logs in one browser, once.
  std::string NewLoginAddress();
  size_t pollers() const { return hub_.pollers(); }

 private:
  Dashboard(Options options, std::unique_ptr<HttpServer> server);
  HttpResponse Handle(const HttpRequest& request, bool has_client_certificate);
  HttpResponse Login(const HttpRequest& request);
  HttpResponse Page(const HttpRequest& request) const;
  HttpResponse Document(const HttpRequest& request) const;
  // `session` is the secret in the cookie; empty: the client has a certificate.
  HttpResponse Events(const HttpRequest& request, const std::string& session);
  void WriteEvents(const std::string& view, const Query& query, const std::string& session,
                   ResponseStream& stream);
  // False if Host or Origin is not a name of this server.
  bool IsOwn(const HttpRequest& request) const;

  const Options options_;
  const bool tls_;
  const std::string base_;    // "http://127.0.0.1:7465"
  const std::string cookie_;  // name of the cookie
  const std::vector<std::string> hosts_;
  Access access_;
  EventHub hub_;
  // Declared last: its threads use the other members, and end before the other members are destroyed.
  const std::unique_ptr<HttpServer> server_;
};

}  // namespace tensorcast::dashboard
