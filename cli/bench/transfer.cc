#include "cli/bench/transfer.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"

namespace tensorcast::bench {

absl::StatusOr<Moved> MoveOnce(const RequestContext& context, BenchCluster& cluster, const std::string& key,
                               const std::string& lane) {
  const SteadyTime start = SteadyNow();
  TC_ASSIGN_OR_RETURN(auto replica,
                      cluster.client(1).Get(context, key, {.lane = lane, .wait_for_space = true}));
  Moved moved;
  moved.wall = SteadyNow() - start;
  if (!replica->transfer()) return absl::InternalError("the replica was there before it was asked for");
  moved.report = *replica->transfer();
  if (moved.report.verified_chunks == 0) return absl::InternalError("a transfer verified nothing");
  if (!moved.report.stages.empty() && moved.report.stages.front().source.lane != lane) {
    return absl::InternalError(
        absl::StrCat("asked for the lane ", lane, ", went over ", moved.report.stages.front().source.lane));
  }
  const std::string replica_id = replica->replica_id();
  replica.reset();
  TC_RETURN_IF_ERROR(cluster.admin(1).EvictReplica(context, replica_id, /*force=*/true));
  return moved;
}

}  // namespace tensorcast::bench
