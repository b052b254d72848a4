// How the text that names an object tells its kind. A file is named by its path, and any other object by a
// URI with a scheme: "s3://bucket/prefix". A pure function; thread-safe.
#pragma once

#include <algorithm>
#include <string_view>

namespace tensorcast {

// Whether the text begins with a scheme and "://". Such a text is never taken for a path: a file in a folder
// of that name is "./s3://bucket". Every node reads the same object by it.
inline bool IsObjectUri(std::string_view text) {
  const size_t scheme = text.find("://");
  return scheme != text.npos && scheme > 0 && std::ranges::all_of(text.substr(0, scheme), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.';
         });
}

}  // namespace tensorcast
