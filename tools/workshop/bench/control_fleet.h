// `tensorcast bench control --nodes`: the cost of a fleet for a global store, and how soon the store is back
// after a kill.
#pragma once

#include "absl/status/statusor.h"
#include "tools/workshop/bench/bench.h"

namespace tensorcast::bench {

struct FleetBenchOptions {
  int nodes = 10000;
  int replicas = 10;     // of each node
  bool burners = false;  // a busy process on each core
  bool hold = false;     // measure nothing: print the store's address, and run until the context is cancelled
};

// Runs simulated nodes and a global store that is killed and restarted, `runs` times. Measures the time until
// the store counts every replica of every node, its CPU time until then and in steady state, its descriptors,
// and the nodes that it dropped. Has no reference. With `hold` there are no rows. RESOURCE_EXHAUSTED if the
// limit of open files is too low.
absl::StatusOr<Rows> RunControlFleet(const BenchOptions& options, const FleetBenchOptions& fleet);

}  // namespace tensorcast::bench
