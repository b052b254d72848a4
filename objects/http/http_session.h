// A handle of libcurl with the connections that it keeps, and the only code that speaks to libcurl. It runs
// one attempt of one request: it follows no redirect and repeats nothing (http_client.h).
//
// Thread-compatible: the thread that runs a request owns it for that long.
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

// How a transfer ended. Of all but kWhole and kFailed the next attempt may end otherwise.
enum class HttpEnd : uint8_t {
  kWhole,      // the reply is there, whatever it says
  kTimedOut,   // no connection in time, or no byte for HttpLimits::stall
  kLost,       // no connection, or one that was lost
  kUntrusted,  // the server's certificate is not trusted
  kFailed,
};

class HttpSession {
 public:
  // `origin`: what its connections are kept for.
  explicit HttpSession(std::string origin);
  ~HttpSession();
  HttpSession(const HttpSession&) = delete;
  HttpSession& operator=(const HttpSession&) = delete;

  const std::string& origin() const { return origin_; }

  // Asks `url`, which a redirect may have named, with these headers alone. `local`: it may lead to a loopback
  // or link-local address. CANCELLED and DEADLINE_EXCEEDED of the context, at once; PERMISSION_DENIED: an
  // address that is not allowed. Where `exchange` refused what arrived, the end says nothing.
  absl::StatusOr<HttpEnd> Run(const RequestContext& context, const HttpRequest& request, const Url& url,
                              const HttpHeaders& headers, bool local, const HttpOptions& options,
                              const HttpLimits& limits, HttpExchange& exchange);

  // What libcurl says of the last transfer, where that did not end as kWhole.
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
