// A libcurl handle with its open connections. Only this class calls libcurl. It makes one attempt of one
// request at a time; HttpClient follows redirects and retries.
//
// Thread-compatible: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "objects/http/http_exchange.h"
#include "objects/http/http_message.h"
#include "objects/http/url.h"

namespace tensorcast::objects {

// How a transfer ended. After kTimedOut and kLost a retry may succeed.
enum class HttpEnd : uint8_t {
  kWhole,      // the reply is complete, whatever its status
  kTimedOut,   // no connection in time, or no byte for HttpLimits::stall
  kLost,       // the connection failed or was lost
  kUntrusted,  // the server's certificate is not trusted
  kFailed,     // any other error of libcurl
};

class HttpSession {
 public:
  // `origin` is the server for which the session keeps its connections.
  explicit HttpSession(std::string origin);
  ~HttpSession();
  HttpSession(const HttpSession&) = delete;
  HttpSession& operator=(const HttpSession&) = delete;

  const std::string& origin() const { return origin_; }

  // Requests `url` (the URL of the request or of a redirect) with only these headers. Blocks until the
  // transfer has ended. `local`: the host may have a loopback or link-local address. CANCELLED or
  // DEADLINE_EXCEEDED if the context ends first; PERMISSION_DENIED for an address that is not allowed. If
  // exchange.refusal() is not OK, the caller must ignore the result.
  absl::StatusOr<HttpEnd> Run(const RequestContext& context, const HttpRequest& request, const Url& url,
                              const HttpHeaders& headers, bool local, const HttpOptions& options,
                              const HttpLimits& limits, HttpExchange& exchange);

  // libcurl's message about the last transfer, if it did not end as kWhole.
  const std::string& error() const { return error_; }

 private:
  struct Handles;  // of libcurl

  absl::StatusOr<int> Transfer(const RequestContext& context, const HttpRequest& request,
                               const HttpLimits& limits, HttpExchange& exchange);

  const std::string origin_;
  const std::unique_ptr<Handles> curl_;
  std::string error_;
};

}  // namespace tensorcast::objects
