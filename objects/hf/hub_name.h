// The name of a repository, folder or file on a model hub: "hf://org/name[@revision][/path]". A '/' in a
// revision is written %2F. Values and pure functions; thread-compatible.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tensorcast::objects {

struct HubName {
  std::string repository;         // "org/name"
  std::string revision = "main";  // a branch, a tag or a commit
  std::string path;               // of a file or a folder; empty: the whole repository

  // INVALID_ARGUMENT for another form, and for components that have another meaning in a path or a URL
  // ("..").
  static absl::StatusOr<HubName> Parse(std::string_view uri);

  std::string Uri() const;
  // Whether the revision is a commit, which no push changes.
  bool IsPinned() const;
};

// Whether the text is `digits` hexadecimal digits in lower case.
bool IsHex(std::string_view text, size_t digits);

}  // namespace tensorcast::objects
