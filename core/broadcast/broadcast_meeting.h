// WideGroupPlan: a group of GPUs on several nodes for a broadcast; the engine's owner announces it.
// BroadcastMeeting: the interface through which the engine waits for the other nodes of the group.
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
  std::vector<Rank> ranks;  // the GPUs of this node
  // Whether the root (the rank that sends) is one of `ranks`. The root has a ready replica, or else the
  // replica with the earliest ingest.
  bool has_root = false;
  SteadyTime forms_until;  // the group is given up if it has not formed by this time
  std::shared_ptr<BroadcastMeeting> meeting;
};

// The data that the root's node provides to all nodes.
struct WideRoot {
  std::string communicator_id;  // WideBroadcastGroup::MakeId; a secret
  uint32_t rank = 0;
  std::string node_name = {};  // the meeting sets it
  std::string replica_id = {};
  TraceContext made_by = {};  // the ingest that makes or made the replica
};

// Implementations are thread-safe.
class BroadcastMeeting {
 public:
  virtual ~BroadcastMeeting() = default;
  // Reports that this node is ready, and blocks until all nodes are ready. After an error the group is over.
  // `root` is set only on the root's node.
  virtual absl::StatusOr<WideRoot> Meet(const RequestContext& context, const WideGroupPlan& plan,
                                        const std::optional<WideRoot>& root) = 0;
  // Reports that this node does not take part, or has stopped taking part. Blocks only briefly.
  virtual void GiveUp(const WideGroupPlan& plan, const absl::Status& why) = 0;
};

}  // namespace tensorcast
