// An HTTP/1.1 server in the test's process, on a port of 127.0.0.1. The test's function answers the requests.
// The server can also misbehave: end a body early, trickle, or change an object. Each connection has a
// thread. The function is called on these threads, one call at a time. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tensorcast::objects::testing {

struct FakeRequest {
  std::string method;
  std::string path;                                          // as it was sent
  std::string query;                                         // as it was sent
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;

  std::string Header(std::string_view lower_case_name) const;
  // The decoded value of a query parameter; empty: the query does not have it.
  std::string Query(std::string_view name) const;
};

struct FakeReply {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string body = {};
  // The connection is closed after this many bytes of the body; with `reset` it is reset instead.
  std::optional<size_t> close_after = std::nullopt;
  bool reset = false;
  // The body is sent in pieces of this size; `before_piece` is called before each piece.
  size_t piece_bytes = ~size_t{0};
  std::function<void()> before_piece = {};
};

struct FakeTls {
  std::string certificate, key;  // files
};

class FakeServer {
 public:
  using Handler = std::function<FakeReply(const FakeRequest&)>;
  explicit FakeServer(Handler handler, const FakeTls* tls = nullptr);
  ~FakeServer();

  std::string url() const;  // "http://127.0.0.1:<port>"
  int connections() const;  // accepted so far
  std::vector<FakeRequest> requests() const;

 private:
  class Connection;
  struct Tls;

  void Accept();
  void Serve(Connection& connection);

  const Handler handler_;
  std::unique_ptr<Tls> tls_;
  int listener_ = -1;
  uint16_t port_ = 0;
  absl::Mutex handler_mutex_;
  mutable absl::Mutex mutex_;
  std::vector<FakeRequest> requests_ ABSL_GUARDED_BY(mutex_);
  std::list<Connection> connections_ ABSL_GUARDED_BY(mutex_);
  std::thread accepting_;
};

// The reply of a well-behaved server: all of `bytes`, or the range that the request asks for, with the ETag;
// 412 if If-Match names another ETag.
FakeReply ServeBytes(const FakeRequest& request, std::string_view bytes, std::string_view etag);

}  // namespace tensorcast::objects::testing
