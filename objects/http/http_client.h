// A client for HTTP/1.1 (RFC 9110, RFC 9112) over libcurl. Each request runs on its caller's thread. To read
// in parallel, call Fetch from several threads. Connections stay open for later requests.
//
// A request ends at once when its context ends. An attempt fails if no byte arrives for HttpLimits::stall.
// Failures that may pass (5xx, 429, timeouts, lost connections, short bodies) are retried after a random
// pause, within HttpLimits. HttpCounts and the metrics tc_object_* count the retries. A retry of a ranged
// read continues where the last attempt ended, if the server serves ranges.
//
// HttpRequest::may_follow decides about each redirect. A redirect from https to http is refused, and the
// headers of a request are never sent to another origin.
//
// Thread-safe. Errors name the request by its `subject`, never by its URL, which may be signed: UNAVAILABLE
// (all attempts failed, or a failure that is not retried, for example too many redirects),
// FAILED_PRECONDITION (the object has changed since it was opened), DATA_LOSS (the server cannot serve
// ranges), PERMISSION_DENIED (an address or redirect that is not allowed, a certificate that is not trusted),
// RESOURCE_EXHAUSTED (a reply of more than 64 MiB that is not a ranged read), CANCELLED, DEADLINE_EXCEEDED.
// A reply with a status that is not retried is returned as a reply, not as an error.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/request_context.h"
#include "objects/http/http_message.h"

namespace tensorcast::objects {

class HttpSession;

struct HttpCounts {
  uint64_t requests = 0;  // attempts and redirects included
  uint64_t bytes = 0;     // of bodies
  uint64_t retries_after_status = 0;
  uint64_t retries_after_timeout = 0;
  uint64_t retries_after_lost_connection = 0;  // short bodies included
};

class HttpClient {
 public:
  explicit HttpClient(HttpOptions options = {});
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  absl::StatusOr<HttpReply> Fetch(const RequestContext& context, const HttpRequest& request);

  HttpCounts counts() const;

 private:
  std::unique_ptr<HttpSession> TakeSession(const std::string& origin);
  void NoteAnswered(const std::string& origin);
  bool HasAnswered(const std::string& origin);
  void GiveSession(std::unique_ptr<HttpSession> session);

  const HttpOptions options_;
  std::atomic<uint64_t> requests_ = 0;
  std::atomic<uint64_t> bytes_ = 0;
  std::atomic<uint64_t> retries_after_status_ = 0;
  std::atomic<uint64_t> retries_after_timeout_ = 0;
  std::atomic<uint64_t> retries_after_lost_connection_ = 0;
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<HttpSession>> idle_ ABSL_GUARDED_BY(mutex_);  // most recently used last
  std::set<std::string> answered_ ABSL_GUARDED_BY(mutex_);  // origins that answered at least once
};

}  // namespace tensorcast::objects
