// Requests on the followers of keys, and the answers. Plain values.
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

// A follower, and the progress at its place.
struct FollowerView {
  FollowerRecord record;
  uint64_t newest_revision = 0;  // of the key; 0: the key is not bound
  std::string artifact_id;       // of the newest revision
  uint64_t revision = 0;         // the newest kept revision that is ready at the place; 0: none
  std::optional<TaskView> task;  // the task that brings or brought the newest version
};

struct FollowPlan {
  struct Place {
    absl::Status error;  // why the target cannot follow; OK: it can
    FollowerRecord follower;
  };
  DurableFacts facts;
  std::vector<Place> places;  // one per target, in their order
};

struct UnfollowPlan {
  DurableFacts facts;
  std::vector<FollowerRecord> followers;  // before their removal
};

}  // namespace tensorcast::global_store
