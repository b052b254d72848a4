// Tells the kind of an object from the text that names it: a path names a file, and a URI with a scheme
// ("s3://bucket/prefix") names any other object. Pure functions; thread-safe.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace tensorcast {

// Whether the text begins with a scheme and "://". Such a text is always a URI, never a path: write the path
// of a file below a folder "s3:" as "./s3://bucket". A URI names the same object on every node.
inline bool IsObjectUri(std::string_view text) {
  const size_t scheme = text.find("://");
  return scheme != text.npos && scheme > 0 && std::ranges::all_of(text.substr(0, scheme), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.';
         });
}

// The URI without secrets, for a message, a span or a log. "***" replaces a user name and password before the
// host, and the query of an http or https URL, which may be a signature. A text that is not a URI is
// unchanged.
inline std::string ShownUri(std::string_view text) {
  if (!IsObjectUri(text)) return std::string(text);
  const size_t host = text.find("://") + 3;
  const size_t end = std::min(text.find_first_of("/?#", host), text.size());
  const size_t at = text.substr(0, end).rfind('@');
  const bool has_user = at != text.npos && at >= host;
  const size_t query = text.starts_with("http") ? std::min(text.find('?', end), text.size()) : text.size();
  std::string shown(text.substr(0, host));
  if (has_user) shown += "***";
  shown += text.substr(has_user ? at : host, query - (has_user ? at : host));
  if (query < text.size()) shown += "?***";
  return shown;
}

// Checks a URI that is to be stored and shown. Returns the reason for refusing the URI, with a remedy; empty
// if the URI has no secret.
inline std::string_view SecretIn(std::string_view uri) {
  if (ShownUri(uri) == uri) return "";
  return "the URI has a password or a query, and both may be secret; set credentials in the environment, "
         "or download the object and import the file";
}

}  // namespace tensorcast
