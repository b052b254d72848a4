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
  std::string uri;  // for a file: its absolute path without links; for others: a URI with a scheme
  uint64_t bytes = 0;
  std::string version;  // each kind of object has its own form; for a file: FileVersion::Text

  friend bool operator==(const ObjectIdentity&, const ObjectIdentity&) = default;
};

// The attributes of a file that change with every write. A user may set a file's mtime back, but the kernel
// then sets the ctime, which shows the change.
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

// For errors: how the object `is` differs from `was`. Empty: it does not differ.
std::string DescribeChange(const ObjectIdentity& was, const ObjectIdentity& is);

struct Origin {
  std::string node_id;  // the node that imported the objects; only this node can read files
  std::vector<ObjectIdentity> objects;
  bool untraceable = false;  // a write may leave the versions unchanged: the origin never counts as a copy
  bool compared = false;     // the objects were read again in these versions, and all digests were right

  friend bool operator==(const Origin&, const Origin&) = default;
};

// Whether any node can read it, if its configuration allows that: all objects have URIs with a scheme.
bool IsShared(const Origin& origin);

// Encodes an origin for storage (FORMAT.md). REQUIRES: fewer than 2^32 objects, and texts shorter than 2^32
// bytes.
std::string EncodeOrigin(const Origin& origin);
// INVALID_ARGUMENT unless EncodeOrigin wrote the bytes.
absl::StatusOr<Origin> DecodeOrigin(std::string_view bytes);

}  // namespace tensorcast
