#include "objects/http/url.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace tensorcast::objects {
namespace {

uint16_t DefaultPort(std::string_view scheme) { return scheme == "https" ? 443 : 80; }

std::string Bracketed(const std::string& host) {
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]") : host;
}

absl::Status Malformed(std::string_view text, std::string_view cause) {
  // The query may be a signature, and messages are kept.
  return absl::InvalidArgumentError(absl::StrCat(text.empty() ? "parse a URL" : "parse URL ",
                                                 text.substr(0, text.find('?')), ": ", cause,
                                                 "; write http://host/path or https://host/path"));
}

// Percent signs are not allowed: an encoded host would be one text here and another one to a resolver.
bool IsHost(std::string_view host, bool bracketed) {
  return !host.empty() && std::ranges::all_of(host, [bracketed](char c) {
    return bracketed ? absl::ascii_isxdigit(c) || c == ':' || c == '.'
                     : absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
  });
}

std::string Encode(std::string_view text, std::string_view also_kept) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    if (absl::ascii_isalnum(c) || absl::StrContains("-._~", c) || absl::StrContains(also_kept, c)) {
      encoded += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      encoded += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return encoded;
}

}  // namespace

std::string Url::Authority() const {
  return port == DefaultPort(scheme) ? Bracketed(host) : absl::StrCat(Bracketed(host), ":", port);
}

std::string Url::Origin() const { return absl::StrCat(scheme, "://", Bracketed(host), ":", port); }

std::string Url::Text() const {
  return absl::StrCat(scheme, "://", Authority(), path, query.empty() ? "" : "?", query);
}

absl::StatusOr<Url> ParseUrl(std::string_view text) {
  // Some readers take a backslash for a slash, and drop tabs and ends of lines; others do not. A URL has only
  // ASCII characters (RFC 3986). `char` is signed on some processors only, hence the type.
  const auto forbidden = [](unsigned char c) { return c <= ' ' || c >= 0x7f || c == '\\' || c == '#'; };
  if (std::ranges::any_of(text, forbidden)) {
    return Malformed("", "the URL has a space, a control or non-ASCII character, a backslash or a fragment");
  }
  Url url;
  const size_t colon = text.find("://");
  if (colon == text.npos) return Malformed(text, "the URL has no scheme");
  url.scheme = absl::AsciiStrToLower(text.substr(0, colon));
  if (url.scheme != "http" && url.scheme != "https") {
    return Malformed(text, "the scheme is not http or https");
  }
  std::string_view rest = text.substr(colon + 3);
  const size_t end = std::min(rest.find_first_of("/?"), rest.size());
  std::string_view authority = rest.substr(0, end);
  rest.remove_prefix(end);
  // The text is not quoted: it may have a password.
  if (absl::StrContains(authority, '@')) return Malformed("", "the URL has a user name");

  // The colons of an IPv6 address are within brackets, so the port begins behind them.
  const bool bracketed = absl::ConsumePrefix(&authority, "[");
  const size_t host_end = std::min(authority.find(bracketed ? ']' : ':'), authority.size());
  url.host = absl::AsciiStrToLower(authority.substr(0, host_end));
  authority.remove_prefix(host_end);
  if (bracketed && !absl::ConsumePrefix(&authority, "]")) return Malformed(text, "the host is malformed");
  if (!IsHost(url.host, bracketed)) return Malformed(text, "the host is malformed");
  url.port = DefaultPort(url.scheme);
  if (!authority.empty()) {
    uint32_t port = 0;
    // SimpleAtoi takes signs and spaces around the number, hence the look at the first character.
    const bool digits = absl::ConsumePrefix(&authority, ":") && absl::SimpleAtoi(authority, &port);
    if (!digits || !absl::ascii_isdigit(authority[0]) || port == 0 || port > 65535) {
      return Malformed(text, "the port is not a number from 1 to 65535");
    }
    url.port = static_cast<uint16_t>(port);
  }
  const size_t mark = std::min(rest.find('?'), rest.size());
  // "https://host" and "https://host?x" mean the path "/".
  url.path = mark == 0 ? "/" : std::string(rest.substr(0, mark));
  if (mark < rest.size()) url.query = rest.substr(mark + 1);
  return url;
}

absl::StatusOr<Url> ResolveLocation(const Url& base, std::string_view location) {
  // A colon ahead of the first slash ends a scheme. After it come the forms without a scheme, without a host,
  // and relative to the path's folder.
  if (absl::StrContains(location.substr(0, location.find_first_of("/?")), ':')) return ParseUrl(location);
  if (absl::StartsWith(location, "//")) return ParseUrl(absl::StrCat(base.scheme, ":", location));
  const std::string folder = base.path.substr(0, base.path.rfind('/') + 1);
  return ParseUrl(absl::StrCat(base.Origin(), absl::StartsWith(location, "/") ? "" : folder, location));
}

bool SameOrigin(const Url& a, const Url& b) {
  return a.scheme == b.scheme && a.host == b.host && a.port == b.port;
}

std::string EncodePath(std::string_view path) { return Encode(path, "/"); }
std::string EncodeComponent(std::string_view text) { return Encode(text, ""); }

std::string DecodePercent(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    std::string byte;
    if (text[i] == '%' && i + 2 < text.size() && absl::HexStringToBytes(text.substr(i + 1, 2), &byte)) {
      decoded += byte;
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

std::string EncodeQuery(const std::vector<std::pair<std::string, std::string>>& parameters) {
  std::string query;
  for (const auto& [name, value] : parameters) {
    absl::StrAppend(&query, query.empty() ? "" : "&", EncodeComponent(name), "=", EncodeComponent(value));
  }
  return query;
}

}  // namespace tensorcast::objects
