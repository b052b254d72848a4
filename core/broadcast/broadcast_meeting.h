// WideGroupPlan: a group of GPUs on several nodes for a broadcast, as the engine's owner announces it.
// BroadcastMeeting: how the engine meets the other nodes of the group.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "base/steady_time.h"
#include "base/trace_context.h"
#include "core/replica/replica.h"

namespace tensorcast {

class BroadcastMeeting;

struct WideGroupPlan {
  struct Rank {
    uint32_t rank = 0;
    Location location;
  };
  std::string group_id;
  std::string artifact_id;
  uint32_t world_size = 0;
  std::vector<Rank> ranks;  // of this node: GPUs
  // The root is one of `ranks`: a ready replica, else the replica with the ingest that began first.
  bool has_root = false;
  SteadyTime forms_until;  // after this time the group is given up if it has not formed
  std::shared_ptr<BroadcastMeeting> meeting;
};

// The data that the root's node provides to all nodes.
struct WideRoot {
  std::string communicator_id;
  uint32_t rank = 0;
  std::string node_name = {};  // filled in by the meeting
  std::string replica_id = {};
  TraceContext made_by = {};  // the ingest that makes the replica, or made it
};

// Thread-safe.
class BroadcastMeeting {
 public:
  virtual ~BroadcastMeeting() = default;
  // Says that this node is ready. Blocks until all nodes are ready, or the group is over (any error). `root`
  // is set on the root's node.
  virtual absl::StatusOr<WideRoot> Meet(const RequestContext& context, const WideGroupPlan& plan,
                                        const std::optional<WideRoot>& root) = 0;
  // Says that this node takes no part (any more). Blocks for a moment at most.
  virtual void GiveUp(const WideGroupPlan& plan, const absl::Status& why) = 0;
};

}  // namespace tensorcast
