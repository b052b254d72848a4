// A client for HTTP/1.1 over libcurl. Each request runs on the thread of its caller, on a connection that is
// kept for the next request to the same server: readers read side by side by calling from several threads,
// and none waits for another's TLS.
//
// A request ends when its context does, at once. Otherwise it lives as long as bytes arrive: a transfer that
// makes progress is slow, and only one that brings no byte for HttpLimits::stall is dead. What may work the
// next time (5xx, 429, timeouts, lost connections, short bodies) is tried again after a jittered pause, a
// bounded number of times, and counted: in HttpCounts and in the metrics tc_object_*. A server that has never
// answered gets fewer attempts. A ranged read goes on where the last attempt ended.
//
// Redirects are followed here, not by libcurl: each is asked for first (HttpRequest::may_follow), none leads
// from https to http, and no header of the request's own goes to another origin.
//
// Thread-safe. Errors name the request by its `subject`, never by its URL, which may be signed: UNAVAILABLE
// (all attempts failed), FAILED_PRECONDITION (the object is not the one that is read), DATA_LOSS (the server
// cannot serve ranges), PERMISSION_DENIED (an address or a redirect that is not allowed, a certificate that
// is not trusted), CANCELLED, DEADLINE_EXCEEDED. A status that is not tried again is a reply, not an error.
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
  std::set<std::string> answered_ ABSL_GUARDED_BY(mutex_);                  // origins, at least once
};

}  // namespace tensorcast::objects
