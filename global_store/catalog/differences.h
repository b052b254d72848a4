// The graph of differences: artifacts are the nodes, and each edge is an artifact of kind difference that
// makes its target from its base. Only an edge's id, ends and size are known here.
//
// An edge is kept while both of its ends are held. A key holds the artifacts of its last versions. An
// artifact that stays until an operator deletes it is held, too. The artifacts at the ends may have been
// deleted. For example, three differences bring a receiver from version 1 of a key to version 4, even if
// versions 2 and 3 have no copy.
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

  // Add or remove one reason to keep the edges of this end. Return true if IsKept of an edge may have
  // changed.
  bool Hold(const std::string& end);
  // REQUIRES: `end` is held.
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
  absl::btree_map<std::string, std::set<std::string>> of_ends_;  // ids of edges
  // Ids of the edges that lead to an artifact. An artifact has few of these, but a popular base has very many
  // edges that lead from it.
  absl::btree_map<std::string, std::set<std::string>> to_;
  absl::flat_hash_map<std::string, uint64_t> holds_;  // number of reasons; never 0
};

// The max number of edges in a path: a receiver applies all edges in one pass over the image, with the
// records of all edges in memory.
inline constexpr size_t kMaxPathEdges = 8;

// The path with the fewest bytes from one of the `bases` to the target. All its edges together have fewer
// than `max_bytes`; it has at most kMaxPathEdges edges, and `usable` holds for each. Of two paths with equal
// bytes, the one with fewer edges. The edges are in the order in which to apply them. Empty: there is no
// path, or the target is one of the bases.
std::vector<DifferenceEdge> CheapestPath(const Differences& differences,
                                         const std::set<std::string, std::less<>>& bases,
                                         std::string_view target, uint64_t max_bytes,
                                         absl::FunctionRef<bool(const DifferenceEdge&)> usable);

}  // namespace tensorcast::global_store
