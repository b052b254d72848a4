// The origin of an artifact: the objects that it was imported from, each in the version that was read. Files
// are objects of one node; objects with a URI are shared. Values and pure functions; thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tensorcast {

// An object as it was when it was read. An object that differs in any field is a different object.
struct ObjectIdentity {
  std::string uri;  // of a file its absolute path without links, of any other object a URI with a scheme
  uint64_t bytes = 0;
  std::string version;  // in the words of its kind: of a file FileVersion's text

  friend bool operator==(const ObjectIdentity&, const ObjectIdentity&) = default;
};

// The attributes of a file that change with every write. Users may set the mtime of their files back, but the
// kernel sets the ctime, which shows that.
struct FileVersion {
  uint64_t device = 0;  // of its file system, on its node
  uint64_t inode = 0;
  int64_t mtime_ns = 0;
  int64_t ctime_ns = 0;

  // "<device>:<inode>:<mtime_ns>:<ctime_ns>"
  std::string Text() const;
  // nullopt for a text of another form.
  static std::optional<FileVersion> Parse(std::string_view text);

  friend bool operator==(const FileVersion&, const FileVersion&) = default;
};

// For an error: how an object that was `was` differs now. Empty: it does not.
std::string DescribeChange(const ObjectIdentity& was, const ObjectIdentity& is);

struct Origin {
  std::string node_id;  // the node that imported the objects; only this node can read files
  std::vector<ObjectIdentity> objects;
  bool untraceable = false;  // a write may leave no trace in the versions: it never counts as a copy
  bool compared = false;     // the objects were read once more in these versions, and each digest was right

  friend bool operator==(const Origin&, const Origin&) = default;
};

// Whether each node can read it, where its configuration allows that: all objects are named by URIs.
bool IsShared(const Origin& origin);

// How origins are stored (FORMAT.md). REQUIRES: fewer than 2^32 objects, and texts shorter than 2^32 bytes.
std::string EncodeOrigin(const Origin& origin);
// INVALID_ARGUMENT for anything but what EncodeOrigin writes.
absl::StatusOr<Origin> DecodeOrigin(std::string_view bytes);

}  // namespace tensorcast
