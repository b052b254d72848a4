// The HTTP request and reply of HttpClient. Values without a thread or a connection; thread-compatible.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/memory/host_pool.h"
#include "objects/http/read_rates.h"
#include "objects/http/url.h"

namespace tensorcast::objects {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpLimits {
  absl::Duration connect = absl::Seconds(3);  // max time for name look-up, connection and handshake
  absl::Duration stall = absl::Seconds(30);   // max time without a byte
  int attempts = 6;                           // max attempts of a request
  int first_attempts = 2;  // max attempts at a server that has never answered: its address may be wrong
  absl::Duration first_pause = absl::Milliseconds(100);  // max pause before a retry; doubles with each retry
  absl::Duration max_pause = absl::Seconds(10);          // also limits a server's Retry-After
};

struct HttpOptions {
  std::string ca_bundle;  // a file of certificates; empty: the system's
  HttpLimits limits;
  std::shared_ptr<ReadRates> rates;  // limits ranged reads; null: no limit
};

// A range of an object, read straight into the caller's memory.
struct RangedRead {
  uint64_t offset = 0;
  HostSpan destination;  // never empty
  // These two identify the version. A reply with another version is refused before any byte is written.
  std::string etag;           // as the server sent it; empty: not known
  uint64_t object_bytes = 0;  // of the whole object
};

struct HttpRequest {
  std::string subject;  // for errors: "read s3://bucket/name"
  std::string method = "GET";
  Url url;
  HttpHeaders headers;    // sent only to the origin of `url`
  std::string_view body;  // borrowed for the call; sent with all methods except GET and HEAD
  std::optional<RangedRead> read;
  // Called for each attempt at the origin of `url`; returns further headers, for example a signature or a
  // token.
  std::function<absl::StatusOr<HttpHeaders>(const Url&)> authorize;
  // OK if a redirect may be followed. Null: a redirect is returned as the reply.
  std::function<absl::Status(const Url& from, const Url& to)> may_follow;
  // Whether a connection for this URL (of the request or of a redirect) may go to a loopback or link-local
  // address. Null: always.
  std::function<bool(const Url&)> may_be_local;
  bool use_proxy = true;             // use the proxy that the environment names, if any
  std::optional<HttpLimits> limits;  // replaces HttpOptions::limits
};

struct HttpReply {
  int status = 0;
  HttpHeaders headers;  // names in lower case
  std::string body;     // empty after a ranged read that succeeded
  Url url;              // the URL that gave the reply, after redirects

  std::string_view Header(std::string_view lower_case_name) const;  // empty: the reply has no such header
};

// Converts the reply's status: OK for 2xx; PERMISSION_DENIED for 401 and 403; NOT_FOUND for 404 and 410;
// FAILED_PRECONDITION for 412 and 416; UNAVAILABLE for all others. `detail`: the server's explanation.
absl::Status StatusOfReply(std::string_view subject, const HttpReply& reply, std::string_view detail = "");

}  // namespace tensorcast::objects
