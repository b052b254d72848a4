#include "global_store/scheduler/scheduler.h"

#include <algorithm>
#include <tuple>

namespace tensorcast::global_store {
namespace {

// A link is slow that has less than a quarter of the receiver's rate; and so many such are given beside
// others.
constexpr uint64_t kSlower = 4;
constexpr uint32_t kMaxSlowLinks = 1;

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

// For a replica on a GPU an attached GPU copy needs no way through the host. Over a lane host memory is
// served as it is, while the others pass through staging buffers.
int PlaceCost(const SourceQuery& query, const Lane& lane, LocationKind place) {
  if (place == LocationKind::kDisk) return 2;
  const bool wants_gpu = lane.rank == 0 && query.destination == LocationKind::kGpu;
  return (place == LocationKind::kGpu) == wants_gpu ? 0 : 1;
}

// 0: in its rack, 1: in its zone, 2: elsewhere, or not known.
int Distance(const LaneEnd& a, const LaneEnd& b) {
  if (a.zone != b.zone) return 2;
  if (!a.rack.empty() && a.rack == b.rack) return 0;
  return a.zone.empty() ? 2 : 1;
}

// In the order of scheduler.h.
using Cost = std::tuple<bool, bool, bool, bool, bool, bool, bool, bool, size_t, int, bool, int, uint32_t,
                        uint64_t, std::string_view>;

struct Ranked {
  Cost cost;
  size_t candidate = 0;
  std::string_view lane;
  bool good = true;  // enough for one that has a source already
  bool slow_link = false;
  bool on_host = false;
  bool rooted = true;
};

std::optional<Ranked> Rank(const SourceQuery& query, const SourceCandidate& source) {
  const std::optional<Lane> lane = FastestLane(query, source);
  if (!lane.has_value()) return std::nullopt;
  const bool full = source.uploads >= query.upload_slots;
  const bool on_host = SameHost(*query.receiver, *source.end);
  const bool slow_link = HasSlowLink(*query.receiver, *source.end);
  // Those of equal rank that join at one moment would make a chain if each took the last one to come.
  const bool spread = source.filling && !query.has_source;
  return Ranked{
      .cost = {source.slow, !source.rooted, source.draining, slow_link, full, source.overtaken,
               source.place == LocationKind::kDisk, !on_host, lane->rank,
               Distance(*query.receiver, *source.end), source.filling, PlaceCost(query, *lane, source.place),
               spread ? 0 : source.active_grants, source.tie, source.replica_id},
      .lane = lane->name,
      .good = !source.slow && !source.draining && (source.rooted || source.partial) && !full,
      .slow_link = slow_link,
      .on_host = on_host,
      .rooted = source.rooted};
}

}  // namespace

bool HasSlowLink(const LaneEnd& receiver, const LaneEnd& source) {
  return source.link_mbit > 0 && source.link_mbit < receiver.link_mbit / kSlower &&
         !SameHost(receiver, source);
}

bool SameHost(const LaneEnd& a, const LaneEnd& b) { return !a.host_id.empty() && a.host_id == b.host_id; }

bool CanUse(const SourceQuery& query, const SourceCandidate& candidate) {
  return FastestLane(query, candidate).has_value();
}

std::vector<SourceChoice> ChooseSources(const SourceQuery& query,
                                        std::span<const SourceCandidate> candidates) {
  std::vector<Ranked> ranked;
  for (size_t i = 0; i < candidates.size(); ++i) {
    std::optional<Ranked> one = Rank(query, candidates[i]);
    if (!one.has_value()) continue;
    one->candidate = i;
    ranked.push_back(*one);
  }
  const size_t max = std::min<size_t>(query.wanted, ranked.size());
  std::ranges::partial_sort(ranked, ranked.begin() + static_cast<std::ptrdiff_t>(max), {}, &Ranked::cost);
  std::vector<SourceChoice> chosen;
  bool rooted = query.has_source;
  bool on_host = query.has_source_on_host;
  bool fast = query.has_fast_source;
  uint32_t slow_links = query.slow_links;
  for (size_t i = 0; i < max; ++i) {
    const Ranked& next = ranked[i];
    const bool first = chosen.empty() && (!query.has_source || query.stalls);
    if (!first && (!next.good || !rooted || (on_host && !next.on_host))) break;
    // They come last, so none that follows is better.
    if (!first && next.slow_link && fast && slow_links >= kMaxSlowLinks) break;
    fast |= !next.slow_link;
    slow_links += next.slow_link ? 1 : 0;
    rooted |= next.rooted;
    on_host |= next.on_host && next.rooted;
    chosen.push_back({.candidate = next.candidate, .lane = std::string(next.lane)});
  }
  return chosen;
}

}  // namespace tensorcast::global_store
