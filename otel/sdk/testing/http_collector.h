// A collector for OTLP over HTTP in this process: a server with just enough of HTTP/1.1 for posts. It keeps
// the last post to each path. Thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tensorcast::otel::testing {

struct HttpPost {
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

class HttpCollector {
 public:
  // Answers the posts to each path with `statuses` in turn, then always with the last one, one connection at
  // a time; a request that is not an HTTP/1.1 post gets 400. Port 0 picks one. CHECK-fails where it cannot
  // listen.
  explicit HttpCollector(std::vector<std::string> statuses, const std::string& host = "127.0.0.1",
                         int port = 0);
  ~HttpCollector();
  HttpCollector(const HttpCollector&) = delete;
  HttpCollector& operator=(const HttpCollector&) = delete;

  const std::string& endpoint() const { return endpoint_; }  // http://host:port
  // The last post to each path.
  std::map<std::string, HttpPost> posts() const ABSL_LOCKS_EXCLUDED(mutex_);
  size_t count(const std::string& path) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Serve();
  void Take(int connection) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::vector<std::string> statuses_;
  int listener_ = -1;
  std::string endpoint_;
  mutable absl::Mutex mutex_;
  std::map<std::string, HttpPost> posts_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, size_t> counts_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace tensorcast::otel::testing
