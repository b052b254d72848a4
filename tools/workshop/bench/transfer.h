// One transfer between two daemons, for the benchmarks that repeat it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "core/replica/transfer_report.h"
#include "tools/workshop/bench/bench_cluster.h"

namespace tensorcast::bench {

// By the daemon's report and by the client's clock.
struct Moved {
  TransferReport report;
  absl::Duration wall;  // from resolving the key to the mapped image; only host memory is mapped
  absl::Duration cpu;   // of both daemons in that time
};

struct Route {
  std::string lane;  // empty: the daemon chooses
  int node = 1;      // the receiver
  std::string location = "cpu";
};

// The node gets `key`, verified, and drops it again, so that the next get takes the same way. INTERNAL when
// it did not use the lane.
absl::StatusOr<Moved> MoveOnce(const RequestContext& context, BenchCluster& cluster, const std::string& key,
                               const Route& route);

}  // namespace tensorcast::bench
