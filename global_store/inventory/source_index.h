// Indexes the replicas that can serve an artifact, by scope. The order of the replicas does not depend on
// their properties, so consecutive replicas from any position are a sample.
//
// Points at nodes and replicas that other objects own. The owners call Leave before they destroy a node or a
// replica. Thread-compatible.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "global_store/inventory/replica.h"
#include "global_store/membership/node.h"

namespace tensorcast::global_store {

struct SourceRef {
  const Node* node = nullptr;
  const HeldReplica* replica = nullptr;
};

class SourceIndex {
 public:
  // Sorted by Spread of the replica id, then by replica id and node id.
  using Set = absl::btree_map<std::pair<uint64_t, std::string>, SourceRef>;
  struct Scope {
    Set ready;
    Set filling;
  };

  // The scopes of the artifact's replicas on a node: the node's rack and zone, if the node has these labels,
  // then the whole artifact.
  static std::vector<std::string> ScopesOf(std::string_view artifact_id, const LaneEnd& end);
  // A hash of the text, the same in every process.
  static uint64_t Spread(std::string_view text);

  // Call Leave before and Join after each change of a replica's IsSource or CanServe, and of its node's
  // labels.
  void Leave(const Node& node, const HeldReplica& replica);
  void Join(const Node& node, const HeldReplica& replica);

  // Null: no replica in this scope can serve.
  const Scope* Find(std::string_view scope) const;

 private:
  friend class DirectoryInvariants;  // tests

  absl::flat_hash_map<std::string, Scope> scopes_;
};

}  // namespace tensorcast::global_store
