// A group of GPUs on several nodes, as the engine's owner tells it of one, and how the engine meets the
// others.
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
  // The root is one of those: a replica that is ready, else the one with the ingest that began first.
  bool has_root = false;
  SteadyTime forms_until;  // without it from then on
  std::shared_ptr<BroadcastMeeting> meeting;
};

// What the root's node provides for all nodes.
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
  // This node is ready. Blocks until all are, or the group is over (any error). `root`: where the root is.
  virtual absl::StatusOr<WideRoot> Meet(const RequestContext& context, const WideGroupPlan& plan,
                                        const std::optional<WideRoot>& root) = 0;
  // This node takes no part, or stops taking part. Blocks for a moment at most.
  virtual void GiveUp(const WideGroupPlan& plan, const absl::Status& why) = 0;
};

}  // namespace tensorcast
