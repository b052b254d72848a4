// `tensorcast bench followers`: what a new version of a key costs a global store that many nodes ask for it.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/workshop/bench/bench.h"
#include "tools/workshop/bench/fleet_follower.h"

namespace tensorcast::bench {

struct FollowersOptions {
  int followers = 10000;
  absl::Duration interval = absl::Seconds(10);  // between two versions
  FleetFollower::Options timing = {};           // how long bytes take at the followers
};

// Simulated nodes follow one key at a global store process. `runs` versions are published, each with a
// difference from the one before. Measures for each version the calls and the store's CPU time per follower,
// and the time from the key's rebinding until the followers have reported the version. Has no reference.
// RESOURCE_EXHAUSTED if the limit of open files is too low.
absl::StatusOr<Rows> RunFollowers(const BenchOptions& options, const FollowersOptions& followers);

}  // namespace tensorcast::bench
