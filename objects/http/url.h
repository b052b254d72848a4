// Absolute http and https URLs, in the single form in which they are compared, signed and sent. An ambiguous
// text is refused, so that the URL that a rule has checked is the URL that the client connects to. Values and
// pure functions; thread-compatible. INVALID_ARGUMENT for a text that is not such a URL. Messages leave out
// the query, which may be a signature.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace tensorcast::objects {

struct Url {
  std::string scheme;  // "http" or "https"
  std::string host;    // lower case; an IPv6 address without its brackets
  uint16_t port = 0;   // never 0 in a URL that was parsed
  std::string path;    // percent-encoded; begins with '/'
  std::string query;   // percent-encoded, without the '?'

  // The value of a Host header: the host, with the port unless it is the scheme's default port.
  std::string Authority() const;
  std::string Origin() const;  // "https://host:port"
  std::string Text() const;

  friend bool operator==(const Url&, const Url&) = default;
};

// Refuses user names, fragments, spaces, control characters and backslashes.
absl::StatusOr<Url> ParseUrl(std::string_view text);
// The URL that a Location header in a reply from `base` names.
absl::StatusOr<Url> ResolveLocation(const Url& base, std::string_view location);
bool SameOrigin(const Url& a, const Url& b);

// Encode every byte except RFC 3986's unreserved ones as %XX; EncodePath keeps '/'. This is also SigV4's
// encoding.
std::string EncodePath(std::string_view path);
std::string EncodeComponent(std::string_view text);
// Decodes %XX. A '%' without two hexadecimal digits after it stays.
std::string DecodePercent(std::string_view text);
// "a=b&c=d", encoded, in the given order.
std::string EncodeQuery(const std::vector<std::pair<std::string, std::string>>& parameters);

}  // namespace tensorcast::objects
