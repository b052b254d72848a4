#include "global_store/scheduler/scheduler.h"

#include <algorithm>
#include <tuple>

namespace tensorcast::global_store {
namespace {

struct Lane {
  std::string name;
  size_t rank = 0;  // 0: local; then places in the receiver's list
};

bool Allowed(const SourceQuery& query, std::string_view lane) {
  return query.required_lane.empty() || query.required_lane == lane;
}

// The receiver maps or opens the source's memory itself: on one host, by its handle socket; GPU memory only
// with a device runtime to open it.
bool CanAttach(const LaneEnd& receiver, const SourceCandidate& source) {
  const bool same_host = !receiver.host_id.empty() && receiver.host_id == source.end.host_id;
  const bool sockets = !receiver.handle_socket.empty() && !source.end.handle_socket.empty();
  const bool reachable = source.place != LocationKind::kGpu || receiver.has_devices;
  return same_host && sockets && reachable;
}

std::optional<Lane> FastestLane(const SourceQuery& query, const SourceCandidate& source) {
  if (Allowed(query, kLocalLane) && CanAttach(query.receiver, source)) {
    return Lane{.name = kLocalLane, .rank = 0};
  }
  const std::vector<std::string>& offered = source.end.lanes;
  for (size_t i = 0; i < query.receiver.lanes.size(); ++i) {
    const std::string& lane = query.receiver.lanes[i];
    if (lane == kLocalLane || !Allowed(query, lane)) continue;
    if (std::find(offered.begin(), offered.end(), lane) != offered.end()) {
      return Lane{.name = lane, .rank = i + 1};
    }
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

}  // namespace

std::optional<SourceChoice> ChooseSource(const SourceQuery& query,
                                         std::span<const SourceCandidate> candidates) {
  // In the order of what counts most: sources that this receiver found slow, and those that should go away,
  // come last; then those that serve many already; a disk is read only where no memory holds it; then the
  // faster lane. The id breaks ties, so that one state gives one answer.
  using Cost = std::tuple<bool, bool, bool, bool, size_t, int, uint32_t, std::string_view>;
  std::optional<SourceChoice> best;
  Cost best_cost;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const SourceCandidate& source = candidates[i];
    const std::optional<Lane> lane = FastestLane(query, source);
    if (!lane.has_value()) continue;
    const Cost cost{source.slow,
                    source.draining,
                    source.active_grants >= query.soft_grants_per_source,
                    source.place == LocationKind::kDisk,
                    lane->rank,
                    PlaceCost(query, *lane, source.place),
                    source.active_grants,
                    source.replica_id};
    if (!best.has_value() || cost < best_cost) {
      best = SourceChoice{.candidate = i, .lane = lane->name};
      best_cost = cost;
    }
  }
  return best;
}

}  // namespace tensorcast::global_store
