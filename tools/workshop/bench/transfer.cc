#include "tools/workshop/bench/transfer.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast::bench {
namespace {

// What the processes of all nodes have used so far.
absl::StatusOr<absl::Duration> CpuTimeOfDaemons(BenchCluster& cluster) {
  absl::Duration sum;
  for (int node = 0; node < cluster.processes().daemons(); ++node) {
    TC_ASSIGN_OR_RETURN(const absl::Duration used, CpuTime(cluster.processes().daemon(node).pid()));
    sum += used;
  }
  return sum;
}

}  // namespace

absl::StatusOr<Moved> MoveOnce(const RequestContext& context, BenchCluster& cluster, const std::string& key,
                               const Route& route) {
  TC_ASSIGN_OR_RETURN(const absl::Duration used, CpuTimeOfDaemons(cluster));
  const SteadyTime start = SteadyNow();
  TC_ASSIGN_OR_RETURN(auto replica, cluster.client(route.node)
                                        .Get(context, key,
                                             {.location = route.location,
                                              .lane = route.lane,
                                              .wait_for_space = true,
                                              .attach = route.location == "cpu"}));
  Moved moved;
  moved.wall = SteadyNow() - start;
  TC_ASSIGN_OR_RETURN(moved.cpu, CpuTimeOfDaemons(cluster));
  moved.cpu -= used;
  if (!replica->transfer()) return absl::InternalError("the replica was there before it was asked for");
  moved.report = *replica->transfer();
  if (moved.report.verified_chunks == 0) return absl::InternalError("a transfer verified nothing");
  if (!route.lane.empty() && !moved.report.stages.empty() &&
      moved.report.stages.front().source.lane != route.lane) {
    return absl::InternalError(absl::StrCat("asked for the lane ", route.lane, ", went over ",
                                            moved.report.stages.front().source.lane));
  }
  const std::string replica_id = replica->replica_id();
  replica.reset();
  TC_RETURN_IF_ERROR(cluster.admin(route.node).EvictReplica(context, replica_id, /*force=*/true));
  return moved;
}

}  // namespace tensorcast::bench
