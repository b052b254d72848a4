// Which version of a key each node has, how far behind it is, and which differences between versions are
// kept. Pure functions: what asks the global store is cli/commands/top.cc, and the dashboard.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "proto/types.pb.h"

namespace tensorcast::explain {

// The newest version of the key that a node has a ready replica of.
struct NodeVersion {
  std::string node;  // its name
  uint64_t revision = 0;
  uint64_t behind = 0;  // revisions
};

// One between two versions that the key has, as the global store keeps it.
struct KeptDifference {
  std::string artifact_id;
  uint64_t base_revision = 0;
  uint64_t target_revision = 0;
  uint64_t image_bytes = 0;
};

struct KeyVersions {
  std::string key;
  uint64_t revision = 0;                    // the current one
  std::vector<NodeVersion> nodes;           // those furthest behind first, then by name
  std::vector<KeptDifference> differences;  // the newest target first
};

// The current version of the key, then the earlier ones that are kept, the newest first.
std::vector<v1::KeyVersion> RevisionsOf(const v1::Key& key);

// `versions`: the artifacts of RevisionsOf(key), with their replicas; one that was deleted is missing.
// `names`: of registered nodes, by id; replicas of others are left out.
KeyVersions VersionsOf(const v1::Key& key, const std::vector<v1::Artifact>& versions,
                       const std::map<std::string, std::string>& names);

// A table of nodes and a line of differences for each key; at most `nodes` rows a key, and how many more
// there are. Empty where there is no key.
std::string VersionsText(const std::vector<KeyVersions>& keys, size_t nodes);

// A JSON array, for programs.
std::string VersionsJson(const std::vector<KeyVersions>& keys);

}  // namespace tensorcast::explain
