// The head of an HTTP/1.x request, as this server takes it: GET and HEAD, without a body. Everything in it
// was written by a peer that need not be a browser, so what is unusual is refused and not repaired. Pure
// functions.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace tensorcast::dashboard {

inline constexpr size_t kMaxHeadBytes = 16 << 10;  // request line and headers, with the empty line
inline constexpr size_t kMaxTargetBytes = 4 << 10;
inline constexpr size_t kMaxHeaders = 64;

using Query = std::map<std::string, std::string>;  // decoded; valid UTF-8 without control characters

struct HttpRequest {
  bool head = false;  // HEAD: an answer has no body
  std::string path;   // decoded, begins with "/"
  Query query;
  std::map<std::string, std::string> headers;  // by name in lower case

  // Empty where the request has none.
  std::string_view Header(std::string_view name) const;
  std::string Cookie(std::string_view name) const;
};

// Where a response that has no end is written to.
class ResponseStream {
 public:
  virtual ~ResponseStream() = default;
  // False when the peer does not take it in time, or is gone.
  virtual bool Write(std::string_view bytes) = 0;
  virtual bool IsOpen() const = 0;
};

// What a request is answered with.
struct HttpResponse {
  int status = 200;
  std::string content_type;
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  // beside those that every answer has
  std::function<void(ResponseStream&)> stream;  // writes what follows `body`, until it returns; may be empty
};

// A sentence as text/plain.
HttpResponse PlainResponse(int status, std::string text);

// `head` ends with the empty line. Returns false where it is refused, and sets `refusal`: 400, 405, 414, 431
// or 505.
bool ParseHead(std::string_view head, HttpRequest* request, HttpResponse* refusal);

// "%2F" to "/", and "+" to " " where `plus` says so. INVALID_ARGUMENT for text that is not encoded well, not
// UTF-8, or has control characters.
absl::StatusOr<std::string> DecodeUrl(std::string_view text, bool plus);
// Everything but letters, digits and "-._~/" as %XX.
std::string EncodeUrl(std::string_view text);

}  // namespace tensorcast::dashboard
