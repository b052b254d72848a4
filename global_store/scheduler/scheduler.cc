#include "global_store/scheduler/scheduler.h"

#include <algorithm>
#include <array>
#include <utility>

#include "global_store/scheduler/link_rates.h"

namespace tensorcast::global_store {
namespace {

struct Lane {
  std::string_view name;
  size_t rank = 0;  // 0: local; then places in the receiver's list
};

bool Allowed(const SourceQuery& query, std::string_view lane) {
  return query.required_lane.empty() || query.required_lane == lane;
}

// The receiver maps or opens the source's memory itself: on one host, by its handle socket; GPU memory only
// with a device runtime to open it.
bool CanAttach(const LaneEnd& receiver, const SourceCandidate& source) {
  const bool sockets = !receiver.handle_socket.empty() && !source.end->handle_socket.empty();
  const bool reachable = source.place != LocationKind::kGpu || receiver.has_devices;
  return SameHost(receiver, *source.end) && sockets && reachable;
}

bool Serves(const SourceQuery& query, const SourceCandidate& source, std::string_view lane) {
  return !source.filling || std::ranges::find(query.filling_lanes, lane) != query.filling_lanes.end();
}

std::optional<Lane> FastestLane(const SourceQuery& query, const SourceCandidate& source) {
  if (Allowed(query, kLocalLane) && Serves(query, source, kLocalLane) && CanAttach(*query.receiver, source)) {
    return Lane{.name = kLocalLane, .rank = 0};
  }
  const std::vector<std::string>& offered = source.end->lanes;
  for (size_t i = 0; i < query.receiver->lanes.size(); ++i) {
    const std::string& lane = query.receiver->lanes[i];
    if (lane == kLocalLane || !Allowed(query, lane) || !Serves(query, source, lane)) continue;
    if (std::ranges::find(offered, lane) != offered.end()) return Lane{.name = lane, .rank = i + 1};
  }
  return std::nullopt;
}

// By the rules in their order, then by the replica's id, so that equal inputs give equal answers.
using Cost = std::pair<std::array<uint64_t, kSourceRules>, std::string_view>;

struct Ranked {
  Cost cost;
  size_t candidate = 0;
  std::string_view lane;
  bool good = true;  // enough for one that has a source already
  bool slow_link = false;
  bool slow = false;  // the receiver gave it up
  bool on_host = false;
  bool rooted = true;
  bool across = false;  // in another zone
};

std::optional<Ranked> Rank(const SourceQuery& query, const SourceCandidate& source,
                           std::span<const SourceRule> rules) {
  const std::optional<Lane> lane = FastestLane(query, source);
  if (!lane.has_value()) return std::nullopt;
  const UsableSource usable{.query = query, .source = source, .lane_rank = lane->rank};
  Ranked ranked{.cost = {{}, source.replica_id}, .lane = lane->name};
  std::ranges::transform(rules, ranked.cost.first.begin(),
                         [&](const SourceRule& rule) { return rule.cost(usable); });
  const bool full = source.uploads >= query.upload_slots;
  ranked.good = !source.slow && !source.draining && (source.rooted || source.partial) && !full;
  ranked.slow = source.slow;
  ranked.slow_link = HasSlowLink(*query.receiver, *source.end);
  ranked.on_host = SameHost(*query.receiver, *source.end);
  ranked.rooted = source.rooted;
  ranked.across = IsAcrossZones(*query.receiver, *source.end);
  return ranked;
}

// Where replicas fill, a whole one with a much faster link is one source of a slower receiver, and no second:
// what it sends twice to slow receivers, the fast ones wait for.
bool IsLeftToFaster(const SourceQuery& query, const SourceCandidate& source) {
  return !source.filling && CostOfFasterLink(*query.receiver, source) > 0;
}

// Removes the sources in other zones where the receiver has, or can have, a source in its own.
void LeaveOtherZones(const SourceQuery& query, std::vector<Ranked>& ranked) {
  const bool brings =
      (query.has_source && !query.stalls) ||
      std::ranges::any_of(ranked, [](const Ranked& one) { return !one.across && one.rooted && !one.slow; });
  if (brings) std::erase_if(ranked, &Ranked::across);
}

}  // namespace

bool CanUse(const SourceQuery& query, const SourceCandidate& candidate) {
  return FastestLane(query, candidate).has_value();
}

std::vector<SourceChoice> ChooseSources(const SourceQuery& query, std::span<const SourceCandidate> candidates,
                                        std::span<const SourceRule> rules) {
  std::vector<Ranked> ranked;
  for (size_t i = 0; i < candidates.size(); ++i) {
    std::optional<Ranked> one = Rank(query, candidates[i], rules);
    if (!one.has_value()) continue;
    one->candidate = i;
    ranked.push_back(*one);
  }
  if (query.zone_role == ZoneRole::kServed) LeaveOtherZones(query, ranked);
  // Only where other replicas fill is it worth leaving a fast source to fast receivers: these then pass the
  // bytes on.
  const bool fills = std::ranges::any_of(
      ranked, [&](const Ranked& one) { return candidates[one.candidate].filling && one.rooted; });
  std::ranges::sort(ranked, {}, &Ranked::cost);
  std::vector<SourceChoice> chosen;
  bool rooted = query.has_source;
  bool on_host = query.has_source_on_host;
  uint32_t slow_links = 0;
  for (const Ranked& next : ranked) {
    if (chosen.size() == query.wanted) break;
    // A receiver that would else move no bytes takes its first source however bad it is. Each further source
    // must meet every condition below.
    const bool first = chosen.empty() && (!query.has_source || query.stalls);
    if (!first && (!next.good || !rooted || (on_host && !next.on_host))) continue;
    if (!first && fills && IsLeftToFaster(query, candidates[next.candidate])) continue;
    if (!first && next.slow_link && slow_links >= query.wanted_slow) continue;
    slow_links += next.slow_link ? 1 : 0;
    rooted |= next.rooted;
    on_host |= next.on_host && next.rooted;
    chosen.push_back({.candidate = next.candidate, .lane = std::string(next.lane)});
  }
  return chosen;
}

}  // namespace tensorcast::global_store
