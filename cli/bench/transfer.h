// One transfer between two daemons, for the benchmarks that repeat it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "cli/bench/bench_cluster.h"
#include "core/replica/transfer_report.h"

namespace tensorcast::bench {

// As the daemon's report and as the client's clock have it.
struct Moved {
  TransferReport report;
  absl::Duration wall;  // key resolved to image mapped
  absl::Duration cpu;   // of both daemons meanwhile
};

// Node 1 gets `key` from node 0 over `lane`, verified, and drops it again, so that the next one comes from
// node 0 too. INTERNAL when it did not go that way.
absl::StatusOr<Moved> MoveOnce(const RequestContext& context, BenchCluster& cluster, const std::string& key,
                               const std::string& lane);

}  // namespace tensorcast::bench
