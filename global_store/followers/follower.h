// What the followers of keys are asked and what they answer. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "global_store/catalog/facts.h"
#include "global_store/tasks/task.h"

namespace tensorcast::global_store {

struct FollowRequest {
  std::string key;
  std::vector<TaskTarget> targets;
  std::string asked_by;
};

// A follower, and how far its place is.
struct FollowerView {
  FollowerRecord record;
  uint64_t newest_revision = 0;  // of the key; 0: it is not bound
  std::string artifact_id;       // of that revision
  uint64_t revision = 0;         // the newest kept revision that is ready at the place; 0: none
  std::optional<TaskView> task;  // that brings the newest version, or did
};

struct FollowPlan {
  struct Place {
    absl::Status error;  // why the target cannot follow
    FollowerRecord follower;
  };
  DurableFacts facts;
  std::vector<Place> places;  // one a target, in their order
};

struct UnfollowPlan {
  DurableFacts facts;
  std::vector<FollowerRecord> followers;  // as they were
};

}  // namespace tensorcast::global_store
