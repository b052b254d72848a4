// Absolute http and https URLs (RFC 3986), in the form in which URLs are compared, signed and sent.
// INVALID_ARGUMENT for a text that is ambiguous or not such a URL. Messages leave out the query, which may be
// a signature. Values and pure functions; thread-compatible.
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

// Refuses user names, fragments, spaces, control characters, backslashes and bytes outside ASCII.
absl::StatusOr<Url> ParseUrl(std::string_view text);
// The URL of the Location header `location` in a reply from `base`.
absl::StatusOr<Url> ResolveLocation(const Url& base, std::string_view location);
bool SameOrigin(const Url& a, const Url& b);

// Encode every byte as %XX except RFC 3986's unreserved characters; EncodePath also keeps '/'. SigV4 requires
// this encoding.
std::string EncodePath(std::string_view path);
std::string EncodeComponent(std::string_view text);
// Decodes %XX. A '%' without two following hexadecimal digits is kept.
std::string DecodePercent(std::string_view text);
// "a=b&c=d", encoded, in the given order.
std::string EncodeQuery(const std::vector<std::pair<std::string, std::string>>& parameters);

}  // namespace tensorcast::objects
