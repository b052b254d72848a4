// Computes which version of a key each node has, how many revisions the node is behind, and the kept
// differences between versions. Pure functions; cli/commands/top.cc and the dashboard ask the global store.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "proto/types.pb.h"

namespace tensorcast::explain {

// A node, and the newest version of the key that has a ready replica on the node.
struct NodeVersion {
  std::string node;  // its name
  uint64_t revision = 0;
  uint64_t behind = 0;  // revisions
};

// A difference, kept by the global store, between two versions of the key.
struct KeptDifference {
  std::string artifact_id;
  uint64_t base_revision = 0;
  uint64_t target_revision = 0;
  uint64_t image_bytes = 0;
};

struct KeyVersions {
  std::string key;
  uint64_t revision = 0;                    // the current one
  std::vector<NodeVersion> nodes;           // sorted: the furthest behind first, then by name
  std::vector<KeptDifference> differences;  // newest target first
};

// The current version of the key, then the kept earlier ones, newest first.
std::vector<v1::KeyVersion> RevisionsOf(const v1::Key& key);

// `versions`: the artifacts of RevisionsOf(key), except deleted ones, with their replicas. `names`: the names
// of registered nodes, by id; replicas on other nodes are left out.
KeyVersions VersionsOf(const v1::Key& key, const std::vector<v1::Artifact>& versions,
                       const std::map<std::string, std::string>& names);

// For each key, a table of nodes and a line of differences. Shows at most `nodes` rows per key, and the
// number of further rows. Empty without keys.
std::string VersionsText(const std::vector<KeyVersions>& keys, size_t nodes);

// A JSON array, for programs.
std::string VersionsJson(const std::vector<KeyVersions>& keys);

}  // namespace tensorcast::explain
