// One transfer between two daemons, for the benchmarks that repeat it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "core/replica/transfer_report.h"
#include "tools/workshop/bench/bench_cluster.h"

namespace tensorcast::bench {

// As the daemon's report and as the client's clock have it.
struct Moved {
  TransferReport report;
  absl::Duration wall;  // key resolved to image mapped; of host memory, no other is mapped
  absl::Duration cpu;   // of both daemons meanwhile
};

struct Route {
  std::string lane;  // empty: the one that the daemon takes
  int node = 1;      // that gets it
  std::string location = "cpu";
};

// The node gets `key`, verified, and drops it again, so that the next one comes the same way. INTERNAL when
// it did not go over the lane.
absl::StatusOr<Moved> MoveOnce(const RequestContext& context, BenchCluster& cluster, const std::string& key,
                               const Route& route);

}  // namespace tensorcast::bench
