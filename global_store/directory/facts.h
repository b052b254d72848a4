// Durable facts: what the metadata store keeps, and what the directory is rebuilt from after a restart. Plain
// values.
//
// A deletion is a fact too. A deleted artifact leaves a tombstone, so that a node which was away meanwhile is
// told to drop its copy instead of publishing it again; a deleted key keeps its revision, so that a
// compare-and-swap cannot mistake a new binding for an old one. Both are purged after kTombstoneAge.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace tensorcast::global_store {

inline constexpr absl::Duration kTombstoneAge = absl::Hours(30 * 24);

struct OriginFile {
  std::string path;
  uint64_t bytes = 0;
  int64_t mtime_ns = 0;
  friend bool operator==(const OriginFile&, const OriginFile&) = default;
};

// Where an artifact was imported from. At most one a node and artifact: the latest.
struct Origin {
  std::string node_id;
  std::vector<OriginFile> files;
  friend bool operator==(const Origin&, const Origin&) = default;
};

struct ArtifactRecord {
  std::string artifact_id;
  uint64_t image_bytes = 0;
  uint64_t chunk_bytes = 0;
  uint32_t tensor_count = 0;
  absl::Time created;
  std::vector<Origin> origins;  // sorted by node id
  bool deleted = false;         // a tombstone: only artifact_id and `updated` still mean something
  absl::Time updated;
  friend bool operator==(const ArtifactRecord&, const ArtifactRecord&) = default;
};

struct KeyRecord {
  std::string name;
  std::string artifact_id;
  uint64_t revision = 0;  // 1 at the first bind
  absl::Time updated;
  bool deleted = false;
  friend bool operator==(const KeyRecord&, const KeyRecord&) = default;
};

// New values of some facts: written together, then applied together.
struct DurableFacts {
  std::vector<ArtifactRecord> artifacts;
  std::vector<KeyRecord> keys;
  bool empty() const { return artifacts.empty() && keys.empty(); }
};

}  // namespace tensorcast::global_store
