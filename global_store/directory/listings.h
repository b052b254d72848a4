// Listings in pages, bounded in bytes: a page is made with the directory locked, and is one message. Pure
// reads of the rooms.
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
  std::vector<std::string> kept_by;  // keys of which it is an earlier version that is kept
  bool released = false;  // it goes when room is needed: no key names or keeps this version any more
  std::vector<DifferenceEdge> differences;  // that make it; of a difference its own
  uint64_t ready_replicas = 0;              // that serve and count as copies, whether listed or not
  std::vector<ReplicaInfo> replicas;
  std::string
      more_replicas_after;  // where a page that had no room for all of them goes on; empty: these are all
};

// How much one page of a listing has at most: of each there is at least one entry on it.
struct PageBounds {
  size_t entries = SIZE_MAX;
  size_t bytes = SIZE_MAX;  // as messages, by estimate; not less than they turn out to be
};

// `next` is where the listing goes on; empty: this is the last page.
struct ArtifactPage {
  std::vector<ArtifactView> artifacts;
  std::string next;
};
struct NodePage {
  std::vector<NodeView> nodes;
  std::string next;
};

// Which artifacts are listed: those for which all of it holds.
struct ArtifactFilter {
  bool unkeyed_only = false;  // no key names or keeps them, and they are not differences that are kept
  absl::Time created_before = absl::InfiniteFuture();
  std::string_view origin_path;  // imported from a file of this path, on any node; empty: from anywhere
  bool replicas = false;         // are listed; else they are only counted
};

// With its replicas, from where an earlier view of it left off. NOT_FOUND for an unknown artifact.
absl::StatusOr<ArtifactView> DescribeArtifact(const Directory& directory, std::string_view artifact_id,
                                              std::string_view after = "", const PageBounds& bounds = {});
// Without its replicas, which are only counted.
absl::StatusOr<ArtifactView> SummarizeArtifact(const Directory& directory, std::string_view artifact_id);
// In order of id, from where the previous page left off; "": from the beginning. An artifact with listed
// replicas that do not fit comes again on the next page, with more of them.
ArtifactPage ListArtifacts(const Directory& directory, std::string_view after, const PageBounds& bounds,
                           const ArtifactFilter& filter);
// In order of id, from where the previous page left off.
NodePage ListNodes(const Membership& nodes, std::string_view after, const PageBounds& bounds, SteadyTime now);
// Those with these names or node ids, in order of what they were asked for by.
NodePage FindNodesNamed(const Membership& nodes, const std::set<std::string, std::less<>>& names,
                        std::string_view after, const PageBounds& bounds, SteadyTime now);

}  // namespace tensorcast::global_store
