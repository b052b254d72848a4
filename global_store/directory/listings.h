// Listings of the directory in pages of bounded size. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "global_store/directory/directory.h"

namespace tensorcast::global_store {

struct ArtifactView {
  ArtifactRecord record;
  std::vector<std::string> keys;
  std::vector<std::string> kept_by;         // keys that keep it as an earlier version
  bool released = false;                    // no key names or keeps it: deleted when space is needed
  std::vector<DifferenceEdge> differences;  // those that make the artifact; of a difference: its own
  uint64_t ready_replicas = 0;              // replicas that serve and count as copies, listed or not
  std::vector<ReplicaInfo> replicas;
  std::string more_replicas_after;  // the argument `after` for the next page; empty: no more replicas
};

// The max size of a page; a page has at least one entry.
struct PageBounds {
  size_t entries = SIZE_MAX;
  size_t bytes = SIZE_MAX;  // estimated; never below the real size
};

// `next`: the argument `after` for the next page; empty: this is the last page.
struct ArtifactPage {
  std::vector<ArtifactView> artifacts;
  std::string next;
};
struct NodePage {
  std::vector<NodeView> nodes;
  std::string next;
};

// Lists the artifacts that meet all conditions.
struct ArtifactFilter {
  bool unkeyed_only = false;  // only artifacts that no key names or keeps; no kept differences
  absl::Time created_before = absl::InfiniteFuture();
  std::string_view origin_path;  // imported from a file of this path, on any node; empty: any
  bool replicas = false;         // list the replicas; false: only count them
};

// The artifact with a page of its replicas. `after`: more_replicas_after of the previous page. NOT_FOUND for
// an unknown artifact.
absl::StatusOr<ArtifactView> DescribeArtifact(const Directory& directory, std::string_view artifact_id,
                                              std::string_view after = "", const PageBounds& bounds = {});
// The artifact without a list of its replicas. NOT_FOUND for an unknown artifact.
absl::StatusOr<ArtifactView> SummarizeArtifact(const Directory& directory, std::string_view artifact_id);
// A page sorted by id. `after`: `next` of the previous page; "": the first page. If an artifact's replicas do
// not fit, the next page lists the artifact again with further replicas.
ArtifactPage ListArtifacts(const Directory& directory, std::string_view after, const PageBounds& bounds,
                           const ArtifactFilter& filter);
// A page sorted by id; `after` as for ListArtifacts.
NodePage ListNodes(const Membership& nodes, std::string_view after, const PageBounds& bounds, SteadyTime now);
// A page of the nodes with these names or node ids, sorted by the name or id in `names`.
NodePage FindNodesNamed(const Membership& nodes, const std::set<std::string, std::less<>>& names,
                        std::string_view after, const PageBounds& bounds, SteadyTime now);

}  // namespace tensorcast::global_store
