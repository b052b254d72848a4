// What an HTTP request asks and what its reply says, for HttpClient and all that read objects with it.
// Values, with no thread and no connection; thread-compatible.
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

}  // namespace tensorcast::objects
