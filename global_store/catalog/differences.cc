#include "global_store/catalog/differences.h"

#include <algorithm>
#include <array>
#include <map>

#include "absl/log/check.h"

namespace tensorcast::global_store {

// An edge is listed under both of its ends, and once more under its target: a search goes backwards from the
// target, and must not visit the many edges that lead from a popular base.
void Differences::Add(const DifferenceEdge& edge) {
  Remove(edge.artifact_id);
  edges_[edge.artifact_id] = edge;
  of_ends_[edge.base_id].insert(edge.artifact_id);
  of_ends_[edge.target_id].insert(edge.artifact_id);
  to_[edge.target_id].insert(edge.artifact_id);
}

void Differences::Remove(const std::string& artifact_id) {
  const auto edge = edges_.find(artifact_id);
  if (edge == edges_.end()) return;
  for (const std::string& end : {edge->second.base_id, edge->second.target_id}) {
    const auto of_end = of_ends_.find(end);
    if (of_end == of_ends_.end()) continue;  // both ends are one artifact
    of_end->second.erase(artifact_id);
    if (of_end->second.empty()) of_ends_.erase(of_end);
  }
  if (const auto to = to_.find(edge->second.target_id); to != to_.end()) {
    to->second.erase(artifact_id);
    if (to->second.empty()) to_.erase(to);
  }
  edges_.erase(edge);
}

bool Differences::Hold(const std::string& end) { return ++holds_[end] == 1; }

bool Differences::Release(const std::string& end) {
  const auto held = holds_.find(end);
  CHECK(held != holds_.end()) << end;
  if (--held->second > 0) return false;
  holds_.erase(held);
  return true;
}

const DifferenceEdge* Differences::Find(std::string_view artifact_id) const {
  const auto edge = edges_.find(artifact_id);
  return edge == edges_.end() ? nullptr : &edge->second;
}

bool Differences::IsKept(std::string_view artifact_id) const {
  const DifferenceEdge* edge = Find(artifact_id);
  return edge != nullptr && holds_.contains(edge->base_id) && holds_.contains(edge->target_id);
}

std::vector<std::string> Differences::Of(std::string_view end) const {
  const auto of_end = of_ends_.find(end);
  if (of_end == of_ends_.end()) return {};
  return {of_end->second.begin(), of_end->second.end()};
}

std::vector<const DifferenceEdge*> Differences::To(std::string_view target) const {
  std::vector<const DifferenceEdge*> edges;
  const auto to = to_.find(target);
  if (to == to_.end()) return edges;
  for (const std::string& artifact_id : to->second) edges.push_back(Find(artifact_id));
  return edges;
}

// Breadth first from the target: a step has what was reached with one edge more, for fewer bytes than with
// fewer edges. So each step only looks at what the one before it improved.
std::vector<DifferenceEdge> CheapestPath(const Differences& differences,
                                         const std::set<std::string, std::less<>>& bases,
                                         std::string_view target, uint64_t max_bytes,
                                         absl::FunctionRef<bool(const DifferenceEdge&)> usable) {
  struct Reached {
    uint64_t bytes = 0;                    // from here to the target
    const DifferenceEdge* edge = nullptr;  // the first on that way
  };
  // `best` has the cheapest way from each artifact by any number of edges and only prunes the search. The
  // path is read from `steps`, where the number of edges tells in which step to look.
  using Step = std::map<std::string_view, Reached>;
  std::array<Step, kMaxPathEdges + 1> steps;
  steps[0][target] = {};
  Step best = steps[0];
  std::string_view from;  // the best of the bases
  size_t edges = 0;       // from there
  uint64_t limit = max_bytes;
  if (bases.contains(target)) return {};
  for (size_t i = 1; i < steps.size() && !steps[i - 1].empty(); ++i) {
    for (const auto& [end, reached] : steps[i - 1]) {
      for (const DifferenceEdge* edge : differences.To(end)) {
        const uint64_t bytes = reached.bytes + edge->image_bytes;
        // Nodes report these sizes, so the sum may overflow.
        if (bytes < reached.bytes || bytes >= limit) continue;
        const auto known = best.find(edge->base_id);
        if ((known != best.end() && known->second.bytes <= bytes) || !usable(*edge)) continue;
        best[edge->base_id] = steps[i][edge->base_id] = {.bytes = bytes, .edge = edge};
        if (!bases.contains(edge->base_id)) continue;
        from = edge->base_id;
        edges = i;
        limit = bytes;
      }
    }
  }
  std::vector<DifferenceEdge> path;
  for (; edges > 0; --edges) {
    path.push_back(*steps[edges].find(from)->second.edge);
    from = path.back().target_id;
  }
  return path;
}

}  // namespace tensorcast::global_store
