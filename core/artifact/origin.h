// The origin of an artifact: the objects that it was imported from, each with the version that was read. A
// file can be read only on its node; an object with a URI is shared. Value types and pure functions;
// thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tensorcast {

// An object at the time when it was read. An object that differs in any field is a different object.
struct ObjectIdentity {
  std::string uri;  // for a file: its absolute path without links; for other objects: a URI with a scheme
  uint64_t bytes = 0;
  std::string version;  // its form depends on the kind of object; for a file: FileVersion::Text

  friend bool operator==(const ObjectIdentity&, const ObjectIdentity&) = default;
};

// Attributes that show writes to a file (see Origin::untraceable). A user can set the mtime, not the ctime.
struct FileVersion {
  uint64_t device = 0;  // the number of the file system's device on this node
  uint64_t inode = 0;
  int64_t mtime_ns = 0;
  int64_t ctime_ns = 0;

  // "<device>:<inode>:<mtime_ns>:<ctime_ns>"
  std::string Text() const;
  // nullopt for a text of another form.
  static std::optional<FileVersion> Parse(std::string_view text);

  friend bool operator==(const FileVersion&, const FileVersion&) = default;
};

// Describes, for messages, the change of an object from identity `was` to identity `is`. Empty if size and
// version are equal.
std::string DescribeChange(const ObjectIdentity& was, const ObjectIdentity& is);

struct Origin {
  std::string node_id;  // the node that imported the objects; only this node can read files
  std::vector<ObjectIdentity> objects;
  bool untraceable = false;  // a write may leave the versions unchanged, so the origin never counts as a copy
  bool compared = false;     // a second read of these versions gave the same digests

  friend bool operator==(const Origin&, const Origin&) = default;
};

// Whether every node can read the origin, provided that the node's configuration allows it. True if there are
// objects and each of them has a URI with a scheme.
bool IsShared(const Origin& origin);

// Encodes an origin for storage (FORMAT.md). REQUIRES: fewer than 2^32 objects, and texts shorter than 2^32
// bytes.
std::string EncodeOrigin(const Origin& origin);
// INVALID_ARGUMENT unless EncodeOrigin wrote the bytes.
absl::StatusOr<Origin> DecodeOrigin(std::string_view bytes);

}  // namespace tensorcast
