// The state of the fleet as a whole: the transfers of each zone and rack, the slowest nodes, and the progress
// of the versions of keys. README.md has the rules and the bounds.
//
// Deterministic: callers pass the time. Thread-compatible: one caller at a time.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "core/replica/replica.h"
#include "global_store/catalog/catalog.h"
#include "global_store/inventory/inventory.h"
#include "global_store/membership/node.h"

namespace tensorcast::global_store {

// The values of a node's labels zone and rack; empty: no label.
struct Place {
  std::string zone;
  std::string rack;
  friend auto operator<=>(const Place&, const Place&) = default;
};

// The median, the 95th percentile and the slowest of a place's recently ended transfers.
struct PlaceTransfers {
  static constexpr std::array<std::string_view, 3> kPercentiles = {"50", "95", "100"};
  Place place;
  std::array<double, 3> seconds;
  std::array<double, 3> bytes_per_second;
};

struct Straggler {
  Place place;
  std::string node;  // its name
  double seconds = 0;
};

struct Rollout {
  std::string key;
  uint64_t current = 0;  // nodes with the current version
  uint64_t one_behind = 0;
  uint64_t more_behind = 0;
  absl::Duration took;  // from the bind until the last node had the version, or until now
};

class Rollups {
 public:
  // Call this when a live node reports its replicas.
  void Note(const NodeFacts& node, const std::vector<ReplicaInfo>& replicas, SteadyTime now);
  void NoteNodeGone(std::string_view node_id);

  std::vector<PlaceTransfers> Transfers(SteadyTime now);
  // Slowest first.
  std::vector<Straggler> Stragglers(SteadyTime now);
  // The rollouts of the keys bound last. `wall_now` is from the clock of the catalog's times.
  std::vector<Rollout> Rollouts(const Catalog& catalog, const Inventory& inventory, absl::Time wall_now);

 private:
  struct Running {
    Place place;
    std::string node;
    SteadyTime since;
  };
  struct Ended {
    SteadyTime at;
    std::string node;
    double seconds = 0;
    double bytes_per_second = 0;
  };
  struct Finish {
    uint64_t revision = 0;
    absl::Duration took;
  };

  void Expire(SteadyTime now);

  std::map<std::pair<std::string, std::string>, Running> running_;  // by node id and replica id
  std::map<Place, std::deque<Ended>> ended_;                        // oldest first
  std::map<std::string, Finish> finished_;                          // rollouts, by key
};

}  // namespace tensorcast::global_store
