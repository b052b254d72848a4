// Analyses the hops of a rollout: the transfers of one artifact to its receivers (RolloutHop). Pure function.
//
// The hops form a tree. A receiver's parent is the source that gave the receiver the most bytes. A source
// that is not a receiver is a first copy. If parents form a circle, the receiver in the circle that ended
// first counts as fed by the first copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "base/steady_time.h"
#include "global_store/rollouts/rollout_log.h"

namespace tensorcast::global_store {

// The receivers at one distance from the first copies.
struct RolloutLevel {
  uint32_t receivers = 0;
  uint32_t ended = 0;  // successfully
  SteadyTime first_begun = SteadyTime::InfiniteFuture();
  SteadyTime last_ended = SteadyTime::InfinitePast();  // of the successful receivers
};

// Hops are named by their index in the argument of AnalyzeRollout.
struct RolloutAnalysis {
  uint32_t ended = 0;                 // successfully
  uint32_t failed = 0;                // the remaining hops are under way
  std::vector<RolloutLevel> levels;   // by distance from the first copies
  std::vector<size_t> critical_path;  // from a receiver of a first copy to the receiver that ended last
  std::vector<size_t> slowest;        // by the time from begun to ended, slowest first
  // The hop that delays the rollout most, compared with a hop of median speed; nullopt: no hop delays the
  // rollout.
  std::optional<size_t> worst_hop;
  absl::Duration worst_hop_costs = absl::ZeroDuration();  // the delay by `worst_hop`
};

// A hop that is under way counts as if it ended at `now`. `slowest`: the max number of slowest receivers.
RolloutAnalysis AnalyzeRollout(std::span<const RolloutHop> hops, size_t slowest, SteadyTime now);

}  // namespace tensorcast::global_store
