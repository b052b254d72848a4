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
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "core/memory/host_pool.h"
#include "objects/http/read_rates.h"
#include "objects/http/url.h"

namespace tensorcast::objects {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpLimits {
  absl::Duration connect = absl::Seconds(3);  // the look-up of the name and the handshake included
  absl::Duration stall = absl::Seconds(30);   // without a byte
  int attempts = 6;
  int first_attempts = 2;  // at a server that has never answered: its address may be wrong
  absl::Duration first_pause = absl::Milliseconds(100);  // doubles each time; a random part of it is waited
  absl::Duration max_pause = absl::Seconds(10);          // also of what a server asks for
};

struct HttpOptions {
  std::string ca_bundle;  // a file of certificates; empty: the system's
  HttpLimits limits;
  std::shared_ptr<ReadRates> rates;  // of ranged reads; null: no limit
};

// A range of an object, read straight into the caller's memory.
struct RangedRead {
  uint64_t offset = 0;
  HostSpan destination;  // never empty
  // Of the version that is read. A reply with another one is refused before a byte of it is written.
  std::string etag;           // as the server sent it; empty: not known
  uint64_t object_bytes = 0;  // of the whole object
};

struct HttpRequest {
  std::string subject;  // for errors: "read s3://bucket/name"
  std::string method = "GET";
  Url url;
  HttpHeaders headers;    // for the origin of `url` alone
  std::string_view body;  // borrowed for the call; sent with any method but GET and HEAD
  std::optional<RangedRead> read;
  // Gives further headers for the origin of `url`, anew for each attempt: a signature or a token.
  std::function<absl::StatusOr<HttpHeaders>(const Url&)> authorize;
  // Without it a redirect is a reply as others are.
  std::function<absl::Status(const Url& from, const Url& to)> may_follow;
  // Whether the URL, the first or that of a redirect, may lead to a loopback or link-local address. Where
  // not, no connection to one is made, whatever the name resolves to. Null: every URL may.
  std::function<bool(const Url&)> may_be_local;
  bool use_proxy = true;             // the one that the environment names, if any
  std::optional<HttpLimits> limits;  // in place of the client's
};

struct HttpReply {
  int status = 0;
  HttpHeaders headers;  // names in lower case
  std::string body;     // empty after a ranged read that succeeded
  Url url;              // that gave the reply, after redirects

  std::string_view Header(std::string_view lower_case_name) const;  // empty: it is not there
};

// A reply that is not 2xx as an error: 401, 403 PERMISSION_DENIED; 404, 410 NOT_FOUND; 412, 416
// FAILED_PRECONDITION; others UNAVAILABLE. `detail`: what the server said of it. OK for 2xx.
absl::Status StatusOfReply(std::string_view subject, const HttpReply& reply, std::string_view detail = "");

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
  class Session;   // a connection that is kept
  class Exchange;  // one attempt

  std::unique_ptr<Session> TakeSession(const std::string& origin);
  void NoteAnswered(const std::string& origin);
  bool HasAnswered(const std::string& origin);
  void GiveSession(std::unique_ptr<Session> session);

  const HttpOptions options_;
  std::atomic<uint64_t> requests_ = 0;
  std::atomic<uint64_t> bytes_ = 0;
  std::atomic<uint64_t> retries_after_status_ = 0;
  std::atomic<uint64_t> retries_after_timeout_ = 0;
  std::atomic<uint64_t> retries_after_lost_connection_ = 0;
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<Session>> idle_ ABSL_GUARDED_BY(mutex_);  // the last used is the last
  std::set<std::string> answered_ ABSL_GUARDED_BY(mutex_);              // origins, at least once
};

}  // namespace tensorcast::objects
