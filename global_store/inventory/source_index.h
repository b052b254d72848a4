// The index of sources: which replicas can serve an artifact, by scope, in an order that says nothing about
// them, so that a few in a row from anywhere are a sample. The work of a request for sources does not grow
// with the number of holders.
//
// Points at nodes and replicas of others, which leave it before they go. Thread-compatible.
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
  // By spread id, then id and node: ids are unique within a node only, since nodes choose them.
  using Set = absl::btree_map<std::pair<uint64_t, std::string>, SourceRef>;
  struct Scope {
    Set ready;
    Set filling;
  };

  // The scopes in which replicas of the artifact on that node are indexed, the widest last: where the node
  // says so its rack and its zone, then the artifact.
  static std::vector<std::string> ScopesOf(std::string_view artifact_id, const LaneEnd& end);
  // A hash that is the same in every process.
  static uint64_t Spread(std::string_view text);

  // Around each change of what IsSource and CanServe say of a replica, and of its node's labels.
  void Leave(const Node& node, const HeldReplica& replica);
  void Join(const Node& node, const HeldReplica& replica);

  // Null: no replica of it can serve.
  const Scope* Find(std::string_view scope) const;

 private:
  friend class DirectoryInvariants;  // tests

  absl::flat_hash_map<std::string, Scope> scopes_;
};

}  // namespace tensorcast::global_store
