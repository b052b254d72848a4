// The graph of differences. An edge is an artifact of kind difference. It leads from its base to its target,
// the two ends of the edge.
//
// An edge is kept while both ends are held. A key holds its last versions. An artifact that stays until an
// operator deletes it is held, too. A held artifact may have been deleted: three differences bring a receiver
// from version 1 of a key to version 4 without versions 2 and 3.
//
// Owns its state. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"

namespace tensorcast::global_store {

struct DifferenceEdge {
  std::string artifact_id;  // id of the difference
  std::string base_id;
  std::string target_id;
  uint64_t image_bytes = 0;  // size of the difference's image
  friend bool operator==(const DifferenceEdge&, const DifferenceEdge&) = default;
};

class Differences {
 public:
  // Replaces an edge with the same id.
  void Add(const DifferenceEdge& edge);
  void Remove(const std::string& artifact_id);

  // Adds one reason to keep the edges of this end. Returns true if IsKept of an edge may have changed.
  bool Hold(const std::string& end);
  // Removes one such reason. Returns true if IsKept of an edge may have changed. REQUIRES: `end` is held.
  bool Release(const std::string& end);

  // Null: there is no such edge.
  const DifferenceEdge* Find(std::string_view artifact_id) const;
  bool IsKept(std::string_view artifact_id) const;
  // The ids of the edges from and to this end.
  std::vector<std::string> Of(std::string_view end) const;
  std::vector<const DifferenceEdge*> To(std::string_view target) const;
  size_t size() const { return edges_.size(); }

 private:
  friend class DirectoryInvariants;  // tests

  absl::btree_map<std::string, DifferenceEdge> edges_;           // by their own id
  absl::btree_map<std::string, std::set<std::string>> of_ends_;  // artifact id -> ids of its edges
  // Artifact id -> ids of the edges that lead to this artifact. They are few, unlike the edges that lead from
  // a base.
  absl::btree_map<std::string, std::set<std::string>> to_;
  absl::flat_hash_map<std::string, uint64_t> holds_;  // number of reasons; never 0
};

// The max number of edges in a path. A receiver holds the records of all edges in memory.
inline constexpr size_t kMaxPathEdges = 8;

// The cheapest path from one of the `bases` to the target: its edges, in the order in which to apply them.
// The path has the min sum of DifferenceEdge::image_bytes; of two equal sums, the path with fewer edges
// wins. All edges are `usable`, at most kMaxPathEdges, and their sum is below `max_bytes`. Empty: there is no
// such path, or the target is one of the bases.
std::vector<DifferenceEdge> CheapestPath(const Differences& differences,
                                         const std::set<std::string, std::less<>>& bases,
                                         std::string_view target, uint64_t max_bytes,
                                         absl::FunctionRef<bool(const DifferenceEdge&)> usable);

}  // namespace tensorcast::global_store
