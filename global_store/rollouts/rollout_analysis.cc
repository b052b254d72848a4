#include "global_store/rollouts/rollout_analysis.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace tensorcast::global_store {
namespace {

constexpr size_t kNone = SIZE_MAX;

// How many hops are tried as the worst one, those that may save the most first. Only in a chain of many slow
// hops are there more.
constexpr size_t kMaxTried = 256;

// The middle one; the zero of the type for none. Changes the order.
template <class Value>
Value Median(std::vector<Value>& values) {
  if (values.empty()) return Value();
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

class Tree {
 public:
  Tree(std::span<const RolloutHop> hops, SteadyTime now) : hops_(hops), now_(now) {
    FindParents();
    FindDepths();
    by_depth_.resize(hops.size());
    std::iota(by_depth_.begin(), by_depth_.end(), size_t{0});
    std::ranges::stable_sort(by_depth_, {}, [this](size_t hop) { return depths_[hop]; });
  }

  size_t parent(size_t hop) const { return parents_[hop]; }
  size_t depth(size_t hop) const { return depths_[hop]; }  // 1: fed by a first copy
  const std::vector<size_t>& by_depth() const { return by_depth_; }
  SteadyTime EndOf(size_t hop) const { return hops_[hop].EndBy(now_); }
  absl::Duration TimeOf(size_t hop) const { return EndOf(hop) - hops_[hop].begun; }
  // The receiver was being filled while this one, which it fed, had begun already.
  bool FedWhileFilling(size_t hop) const {
    return parents_[hop] != kNone && hops_[hop].begun < EndOf(parents_[hop]);
  }

 private:
  void FindParents() {
    absl::flat_hash_map<std::string_view, size_t> by_receiver;
    for (size_t i = 0; i < hops_.size(); ++i) by_receiver[hops_[i].receiver->id] = i;
    parents_.assign(hops_.size(), kNone);
    for (size_t i = 0; i < hops_.size(); ++i) {
      if (hops_[i].source == nullptr) continue;
      const auto found = by_receiver.find(hops_[i].source->id);
      if (found == by_receiver.end() || found->second == i) continue;
      // What is known of the source is a later transfer: it had the artifact before.
      if (hops_[found->second].begun > EndOf(i)) continue;
      parents_[i] = found->second;
    }
  }

  // Walks from each hop along its parents to one with a known depth, or to a first copy. The depths of the
  // path follow from there. A walk that meets itself has found a circle: the circle is cut, and the walk
  // begins again.
  void FindDepths() {
    depths_.assign(hops_.size(), 0);
    std::vector<bool> on_path(hops_.size(), false);
    std::vector<size_t> path;
    for (size_t start = 0; start < hops_.size(); ++start) {
      size_t at = start;
      while (at != kNone && depths_[at] == 0) {
        if (on_path[at]) {
          // Each circle is met once: every hop has one parent.
          const auto circle = std::ranges::find(path, at);
          const size_t cut =
              *std::min_element(circle, path.end(), [&](size_t a, size_t b) { return EndOf(a) < EndOf(b); });
          parents_[cut] = kNone;
          for (const size_t hop : path) on_path[hop] = false;
          path.clear();
          at = start;
          continue;
        }
        on_path[at] = true;
        path.push_back(at);
        at = parents_[at];
      }
      size_t depth = at == kNone ? 0 : depths_[at];
      for (; !path.empty(); path.pop_back()) {
        depths_[path.back()] = ++depth;
        on_path[path.back()] = false;
      }
    }
  }

  const std::span<const RolloutHop> hops_;
  const SteadyTime now_;
  std::vector<size_t> parents_;
  std::vector<size_t> depths_;
  std::vector<size_t> by_depth_;
};

std::vector<size_t> PathTo(const Tree& tree, size_t last) {
  std::vector<size_t> path;
  for (size_t hop = last; hop != kNone; hop = tree.parent(hop)) path.push_back(hop);
  std::ranges::reverse(path);
  return path;
}

// How much longer each hop took than the median hop would have for the same bytes.
std::vector<absl::Duration> LossesOf(std::span<const RolloutHop> hops, const Tree& tree) {
  std::vector<absl::Duration> times;
  std::vector<double> rates;
  for (size_t i = 0; i < hops.size(); ++i) {
    const absl::Duration took = tree.TimeOf(i);
    if (!hops[i].HasEnded() || hops[i].failed || took <= absl::ZeroDuration()) continue;
    times.push_back(took);
    if (hops[i].bytes > 0) rates.push_back(static_cast<double>(hops[i].bytes) / absl::ToDoubleSeconds(took));
  }
  const absl::Duration median_time = Median(times);
  const double median_rate = Median(rates);
  std::vector<absl::Duration> losses(hops.size(), absl::ZeroDuration());
  if (times.empty()) return losses;  // nothing to compare with
  for (size_t i = 0; i < hops.size(); ++i) {
    const bool by_rate = hops[i].HasEnded() && hops[i].bytes > 0 && median_rate > 0;
    const absl::Duration fair =
        by_rate ? absl::Seconds(static_cast<double>(hops[i].bytes) / median_rate) : median_time;
    losses[i] = std::max(tree.TimeOf(i) - fair, absl::ZeroDuration());
  }
  return losses;
}

// The model: a hop that takes `loss` less ends so much earlier. A hop that it feeds, and that began while it
// was still filling, ends earlier by the same, but never by more than its own loss: it does not get faster
// than the median hop either. One that began later does not move: it did not wait for its source. A failed
// hop has no end that a rollout could wait for.
SteadyTime EndWithout(std::span<const RolloutHop> hops, const Tree& tree,
                      const std::vector<absl::Duration>& losses, size_t mended) {
  std::vector<absl::Duration> gains(hops.size(), absl::ZeroDuration());
  SteadyTime end = SteadyTime::InfinitePast();
  for (const size_t hop : tree.by_depth()) {
    if (hop == mended) {
      gains[hop] = losses[hop];
    } else if (tree.FedWhileFilling(hop)) {
      gains[hop] = std::min(gains[tree.parent(hop)], losses[hop]);
    }
    if (!hops[hop].failed) end = std::max(end, tree.EndOf(hop) - gains[hop]);
  }
  return end;
}

// Only a hop on the way to the last receiver can move the end, and by no more than reaches that receiver.
// With these bounds few hops have to be tried.
void FindWorstHop(std::span<const RolloutHop> hops, const Tree& tree, RolloutAnalysis* analysis) {
  const std::vector<absl::Duration> losses = LossesOf(hops, tree);
  const std::vector<size_t>& path = analysis->critical_path;
  std::vector<std::pair<absl::Duration, size_t>> bounds;
  absl::Duration reaches = absl::InfiniteDuration();
  for (auto hop = path.rbegin(); hop != path.rend(); ++hop) {
    reaches = std::min(reaches, losses[*hop]);
    if (reaches <= absl::ZeroDuration()) break;
    bounds.emplace_back(reaches, *hop);
    if (!tree.FedWhileFilling(*hop)) break;
  }
  std::ranges::stable_sort(bounds, std::greater<>(), &std::pair<absl::Duration, size_t>::first);
  if (bounds.size() > kMaxTried) bounds.resize(kMaxTried);
  const SteadyTime end = tree.EndOf(path.back());
  for (const auto& [bound, hop] : bounds) {
    if (bound <= analysis->worst_hop_costs) break;
    const absl::Duration saves = end - EndWithout(hops, tree, losses, hop);
    if (saves <= analysis->worst_hop_costs) continue;
    analysis->worst_hop = hop;
    analysis->worst_hop_costs = saves;
  }
}

}  // namespace

RolloutAnalysis AnalyzeRollout(std::span<const RolloutHop> hops, size_t slowest, SteadyTime now) {
  RolloutAnalysis analysis;
  if (hops.empty()) return analysis;
  const Tree tree(hops, now);
  size_t last = kNone;
  for (size_t i = 0; i < hops.size(); ++i) {
    const RolloutHop& hop = hops[i];
    if (analysis.levels.size() < tree.depth(i)) analysis.levels.resize(tree.depth(i));
    RolloutLevel& level = analysis.levels[tree.depth(i) - 1];
    ++level.receivers;
    level.first_begun = std::min(level.first_begun, hop.begun);
    if (hop.failed) {
      ++analysis.failed;
      continue;
    }
    if (hop.HasEnded()) {
      ++analysis.ended;
      ++level.ended;
      level.last_ended = std::max(level.last_ended, hop.ended);
    }
    // Of those under way the one that began first.
    const auto order = [&](size_t one) { return std::pair(tree.EndOf(one), now - hops[one].begun); };
    if (last == kNone || order(i) > order(last)) last = i;
  }
  analysis.slowest.resize(hops.size());
  std::iota(analysis.slowest.begin(), analysis.slowest.end(), size_t{0});
  const size_t told = std::min(slowest, hops.size());
  std::ranges::partial_sort(analysis.slowest, analysis.slowest.begin() + static_cast<std::ptrdiff_t>(told),
                            std::greater<>(), [&](size_t hop) { return tree.TimeOf(hop); });
  analysis.slowest.resize(told);
  if (last == kNone) return analysis;
  analysis.critical_path = PathTo(tree, last);
  FindWorstHop(hops, tree, &analysis);
  return analysis;
}

}  // namespace tensorcast::global_store
