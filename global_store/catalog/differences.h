// Which artifacts make which from which: the edges of a graph of which artifacts are the ends. An edge is an
// artifact of kind difference; where it is, how large, and which artifacts it is between, is all that is
// known of it here.
//
// An edge is kept while both of its ends are held: by a key that has the end among its last versions, or by
// the end itself, an artifact that stays until it is deleted. The ends need not exist: a receiver that has a
// version three behind is brought to the newest by three differences, also where the two versions between
// them have no copy any more.
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
  std::string artifact_id;  // its own
  std::string base_id;
  std::string target_id;
  uint64_t image_bytes = 0;  // its own
  friend bool operator==(const DifferenceEdge&, const DifferenceEdge&) = default;
};

class Differences {
 public:
  // Replaces one of the same id.
  void Add(const DifferenceEdge& edge);
  void Remove(const std::string& artifact_id);

  // One reason more, or one fewer, to keep the edges of this end. True where IsKept may have changed of them.
  bool Hold(const std::string& end);
  // REQUIRES: it is held.
  bool Release(const std::string& end);

  // Null: there is none.
  const DifferenceEdge* Find(std::string_view artifact_id) const;
  bool IsKept(std::string_view artifact_id) const;
  // The ids of those from this end and to it.
  std::vector<std::string> Of(std::string_view end) const;
  std::vector<const DifferenceEdge*> To(std::string_view target) const;
  size_t size() const { return edges_.size(); }

 private:
  friend class DirectoryInvariants;  // tests

  absl::btree_map<std::string, DifferenceEdge> edges_;           // by their own id
  absl::btree_map<std::string, std::set<std::string>> of_ends_;  // ids of edges
  // Ids of the edges that lead to an artifact: few, where a popular base has very many that lead from it.
  absl::btree_map<std::string, std::set<std::string>> to_;
  absl::flat_hash_map<std::string, uint64_t> holds_;  // how many reasons; never 0
};

// A path is folded into one pass over the image, which holds the records of all its edges at once.
inline constexpr size_t kMaxPathEdges = 8;

// The path of the fewest bytes, all edges together fewer than `max_bytes`, from one of the `bases` to the
// target, by at most kMaxPathEdges edges for which `usable` holds; of two with as many bytes the one of fewer
// edges. In the order in which they are applied. Empty: there is none, or the target is one of the bases.
std::vector<DifferenceEdge> CheapestPath(const Differences& differences,
                                         const std::set<std::string, std::less<>>& bases,
                                         std::string_view target, uint64_t max_bytes,
                                         absl::FunctionRef<bool(const DifferenceEdge&)> usable);

}  // namespace tensorcast::global_store
