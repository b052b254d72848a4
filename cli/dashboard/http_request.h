// The head of an HTTP/1.x request that this server accepts: GET and HEAD, without a body. The peer need not
// be a browser, so unusual input is refused, not repaired. Pure functions.
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
  bool head = false;  // HEAD: the answer has no body
  std::string path;   // decoded, begins with "/"
  Query query;
  std::map<std::string, std::string> headers;  // by name in lower case

  // The value of a header or cookie; empty if the request has none of that name.
  std::string_view Header(std::string_view name) const;
  std::string Cookie(std::string_view name) const;
};

// Writes a response of unknown length.
class ResponseStream {
 public:
  virtual ~ResponseStream() = default;
  // False when the peer does not accept the bytes in time, or is gone.
  virtual bool Write(std::string_view bytes) = 0;
  virtual bool IsOpen() const = 0;
};

// The answer to a request.
struct HttpResponse {
  int status = 200;
  std::string content_type;
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  // in addition to the headers of every answer
  std::function<void(ResponseStream&)> stream;               // if not empty: writes the bytes after `body`
};

// An answer with `text` as text/plain.
HttpResponse PlainResponse(int status, std::string text);

// Parses a head, which ends with an empty line. If the head is refused, returns false and sets `refusal`,
// with status 400, 405, 414, 431 or 505.
bool ParseHead(std::string_view head, HttpRequest* request, HttpResponse* refusal);

// Decodes "%2F" to "/", and with `plus` also "+" to " ". INVALID_ARGUMENT for a text that is not well
// encoded, is not UTF-8, or has control characters.
absl::StatusOr<std::string> DecodeUrl(std::string_view text, bool plus);
// Encodes everything except letters, digits and "-._~/" as %XX.
std::string EncodeUrl(std::string_view text);

}  // namespace tensorcast::dashboard
