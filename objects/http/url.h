// Absolute http and https URLs, in the one form in which they are compared, signed and sent. A text that two
// readers could take for two URLs is refused, so that what a rule was asked about is what is connected to.
// Values and pure functions; thread-compatible. INVALID_ARGUMENT for what is not such a URL; messages leave
// out the query, which may be signed.
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

  // The host as it stands in a Host header: with the port unless it is the scheme's own.
  std::string Authority() const;
  std::string Origin() const;  // "https://host:port"
  std::string Text() const;

  friend bool operator==(const Url&, const Url&) = default;
};

// Refuses user names, fragments, spaces, control characters and backslashes.
absl::StatusOr<Url> ParseUrl(std::string_view text);
// Where a Location header in the reply of `base` leads.
absl::StatusOr<Url> ResolveLocation(const Url& base, std::string_view location);
bool SameOrigin(const Url& a, const Url& b);

// Every byte but RFC 3986's unreserved ones as %XX; '/' stays in a path. This is also SigV4's encoding.
std::string EncodePath(std::string_view path);
std::string EncodeComponent(std::string_view text);
// A '%' that no two hexadecimal digits follow stays.
std::string DecodePercent(std::string_view text);
// "a=b&c=d", encoded, in the given order.
std::string EncodeQuery(const std::vector<std::pair<std::string, std::string>>& parameters);

}  // namespace tensorcast::objects
