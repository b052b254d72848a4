// A client for HTTP/1.1 over libcurl. Each request runs on its caller's thread. Its connection is kept for
// the next request to the same server. To read in parallel, call from several threads: each uses a connection
// of its own.
//
// A request ends at once when its context ends. Otherwise it goes on while bytes arrive, however slowly; a
// transfer stalls if no byte arrives for HttpLimits::stall. Failures that may pass (5xx, 429, timeouts, lost
// connections, short bodies) are retried after a jittered pause, a bounded number of times. HttpCounts and
// the metrics tc_object_* count them. A server that has never answered gets fewer attempts. A ranged read
// goes on where the last attempt ended.
//
// HttpClient follows redirects itself, not by libcurl. HttpRequest::may_follow decides about each one. A
// redirect never leads from https to http, and the headers of a request are never sent to another origin.
//
// Thread-safe. Errors name the request by its `subject`, never by its URL, which may be signed: UNAVAILABLE
// (all attempts failed), FAILED_PRECONDITION (the object is not the one that is read), DATA_LOSS (the server
// cannot serve ranges), PERMISSION_DENIED (an address or a redirect that is not allowed, a certificate that
// is not trusted), CANCELLED, DEADLINE_EXCEEDED. An HTTP status that is not retried is a reply, not an error.
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
  std::vector<std::unique_ptr<HttpSession>> idle_ ABSL_GUARDED_BY(mutex_);  // the last used is the last
  std::set<std::string> answered_ ABSL_GUARDED_BY(mutex_);  // origins that answered at least once
};

}  // namespace tensorcast::objects
