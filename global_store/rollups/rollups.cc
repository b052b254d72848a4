#include "global_store/rollups/rollups.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace tensorcast::global_store {
namespace {

// What ended longer ago says nothing about the fleet now.
constexpr absl::Duration kWindow = absl::Minutes(15);
// A transfer that is not heard of any more is one of a replica that went.
constexpr absl::Duration kLongestTransfer = absl::Hours(6);
// These bounds limit the memory, since nodes report what they like.
constexpr size_t kMaxEnded = 1024;
constexpr size_t kMaxPlaces = 256;
constexpr size_t kMaxRunning = 65536;
constexpr size_t kStragglers = 10;
constexpr size_t kMaxKeys = 8;
constexpr absl::Duration kRolloutAge = absl::Hours(24);

Place PlaceOf(const NodeFacts& node) {
  const auto label = [&](const char* name) {
    const auto found = node.labels.find(name);
    return found == node.labels.end() ? std::string() : found->second;
  };
  return {.zone = label("zone"), .rack = label("rack")};
}

// The value that a share of them does not exceed. REQUIRES: sorted, not empty.
double Percentile(const std::vector<double>& sorted, double share) {
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::max<size_t>(rank, 1) - 1];
}

bool Fills(ReplicaState state) {
  return state == ReplicaState::kAllocating || state == ReplicaState::kFilling;
}

// Adds the nodes with a whole replica of the artifact that are in none of `ahead`, and returns how many.
uint64_t AddHolders(const Inventory& inventory, const std::string& artifact_id,
                    std::set<std::string_view>& ahead) {
  uint64_t added = 0;
  inventory.ForEach(artifact_id, [&](const Node& node, const HeldReplica& replica) {
    if (replica.facts.state == ReplicaState::kReady) added += ahead.insert(node.facts.node_id).second ? 1 : 0;
    return true;
  });
  return added;
}

}  // namespace

void Rollups::Note(const NodeFacts& node, const std::vector<ReplicaInfo>& replicas, SteadyTime now) {
  for (const ReplicaInfo& replica : replicas) {
    if (replica.location.kind == LocationKind::kDisk) continue;
    const std::pair id(node.node_id, replica.id);
    if (Fills(replica.state)) {
      // Beyond the bound a transfer is not measured; the others are.
      if (running_.size() < kMaxRunning) {
        running_.try_emplace(id, Running{.place = PlaceOf(node), .node = node.name, .since = now});
      }
      continue;
    }
    const auto found = running_.find(id);
    if (found == running_.end()) continue;
    const double seconds = absl::ToDoubleSeconds(now - found->second.since);
    if (replica.state == ReplicaState::kReady && seconds > 0) {
      Place place = found->second.place;
      // Labels are free text. Places beyond the bound share one, so that the number of time series stays
      // bounded.
      if (ended_.size() >= kMaxPlaces && !ended_.contains(place)) place = {.zone = "other", .rack = "other"};
      std::deque<Ended>& ended = ended_[place];
      if (ended.size() == kMaxEnded) ended.pop_front();
      ended.push_back({.at = now,
                       .node = found->second.node,
                       .seconds = seconds,
                       .bytes_per_second = static_cast<double>(replica.image_bytes) / seconds});
    }
    running_.erase(found);
  }
}

void Rollups::NoteNodeGone(std::string_view node_id) {
  auto first = running_.lower_bound({std::string(node_id), ""});
  while (first != running_.end() && first->first.first == node_id) first = running_.erase(first);
}

void Rollups::Expire(SteadyTime now) {
  for (auto place = ended_.begin(); place != ended_.end();) {
    std::deque<Ended>& ended = place->second;
    while (!ended.empty() && now - ended.front().at > kWindow) ended.pop_front();
    place = ended.empty() ? ended_.erase(place) : std::next(place);
  }
  std::erase_if(running_, [&](const auto& one) { return now - one.second.since > kLongestTransfer; });
}

std::vector<PlaceTransfers> Rollups::Transfers(SteadyTime now) {
  Expire(now);
  std::vector<PlaceTransfers> places;
  for (const auto& [place, ended] : ended_) {
    std::vector<double> seconds;
    std::vector<double> rates;
    for (const Ended& one : ended) {
      seconds.push_back(one.seconds);
      rates.push_back(one.bytes_per_second);
    }
    std::ranges::sort(seconds);
    // The slowest last, as with the times.
    std::ranges::sort(rates, std::greater<>());
    PlaceTransfers& transfers = places.emplace_back();
    transfers.place = place;
    transfers.seconds = {Percentile(seconds, 0.5), Percentile(seconds, 0.95), seconds.back()};
    transfers.bytes_per_second = {Percentile(rates, 0.5), Percentile(rates, 0.95), rates.back()};
  }
  return places;
}

std::vector<Straggler> Rollups::Stragglers(SteadyTime now) {
  Expire(now);
  // By node: the longest.
  std::map<std::pair<std::string, Place>, double> longest;
  const auto note = [&](const std::string& node, const Place& place, double seconds) {
    double& known = longest[{node, place}];
    known = std::max(known, seconds);
  };
  for (const auto& [id, running] : running_) {
    note(running.node, running.place, absl::ToDoubleSeconds(now - running.since));
  }
  for (const auto& [place, ended] : ended_) {
    for (const Ended& one : ended) note(one.node, place, one.seconds);
  }
  std::vector<Straggler> stragglers;
  for (const auto& [node, seconds] : longest) {
    stragglers.push_back({.place = node.second, .node = node.first, .seconds = seconds});
  }
  const size_t count = std::min(stragglers.size(), kStragglers);
  std::ranges::partial_sort(stragglers, stragglers.begin() + static_cast<std::ptrdiff_t>(count),
                            std::greater<>(), &Straggler::seconds);
  stragglers.resize(count);
  return stragglers;
}

std::vector<Rollout> Rollups::Rollouts(const Catalog& catalog, const Inventory& inventory,
                                       absl::Time wall_now) {
  std::vector<Rollout> rollouts;
  std::map<std::string, Finish> finished;
  for (const KeyRecord* key : catalog.LastBound(kMaxKeys)) {
    if (wall_now - key->updated > kRolloutAge) continue;
    // A node with several versions counts once, with the newest: the current one is counted first, then the
    // earlier ones by age.
    std::set<std::string_view> ahead;
    Rollout& rollout = rollouts.emplace_back();
    rollout.key = key->name;
    rollout.current = AddHolders(inventory, key->artifact_id, ahead);
    for (size_t i = 0; i < key->earlier.size(); ++i) {
      (i == 0 ? rollout.one_behind : rollout.more_behind) +=
          AddHolders(inventory, key->earlier[i].artifact_id, ahead);
    }
    const auto known = finished_.find(key->name);
    // Once it has ended its time stays, also where a node comes back later with an earlier version.
    if (known != finished_.end() && known->second.revision == key->revision) {
      rollout.took = known->second.took;
      finished.insert(*known);
      continue;
    }
    rollout.took = std::max(wall_now - key->updated, absl::ZeroDuration());
    // A rollout has ended when nodes have the current version, and none has an earlier one alone.
    if (rollout.current > 0 && rollout.one_behind + rollout.more_behind == 0) {
      finished[key->name] = {.revision = key->revision, .took = rollout.took};
    }
  }
  // Keys that are not among the last bound ones any more lose their times here.
  finished_ = std::move(finished);
  return rollouts;
}

}  // namespace tensorcast::global_store
