// Followers: places (node and location) that the store keeps at the newest version of a key. A follower is a
// durable fact. The task that brings a version to the place is soft state. README.md has the rules.
//
// Thread-compatible: one caller at a time.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "global_store/followers/follower.h"
#include "global_store/inventory/inventory.h"
#include "global_store/tasks/tasks.h"

namespace tensorcast::global_store {

// The follower's position in listings, which are sorted by key, node and location.
std::string FollowerIdOf(const FollowerRecord& follower);

class Followers {
 public:
  // The arguments must outlive this object.
  Followers(const Catalog& catalog, const Inventory& inventory, Tasks* tasks)
      : catalog_(catalog), inventory_(inventory), tasks_(*tasks) {}

  // A target that already follows the key stays unchanged. Errors are those of CheckKeyName; the error of a
  // single target is in FollowPlan::Place.
  absl::StatusOr<FollowPlan> Prepare(const FollowRequest& request, absl::Time now) const;
  // Plans to remove at most `limit` followers of the key at these places. No targets: all places.
  UnfollowPlan PrepareRemove(std::string_view key, const std::vector<TaskTarget>& targets,
                             size_t limit) const;
  // Plans to remove all followers of a node.
  UnfollowPlan PrepareForget(std::string_view node_id) const;
  void Apply(const FollowerRecord& record, SteadyTime now);

  // Call this after the key was bound or deleted.
  void NoteKey(std::string_view key, SteadyTime now);
  // Call this after the node's inventory arrived. `registered`: true if this inventory is the first since the
  // node registered; such an inventory makes new tasks for failed tasks and evicted replicas.
  void NoteInventory(std::string_view node_id, bool registered, SteadyTime now);

  // At most `limit` followers of the key; empty `key`: of all keys. Starts after the follower id `after`.
  std::vector<FollowerView> List(std::string_view key, std::string_view after, size_t limit) const;
  FollowerView ViewOf(const FollowerRecord& record) const;
  size_t size() const { return followers_.size(); }

 private:
  struct Follower {
    FollowerRecord record;
    std::set<std::string> wanted;  // places of the tasks (TaskKeyOf) for the newest version
  };
  struct Wanted {
    TaskRecord task;
    bool there = false;  // a ready replica is at the place
  };

  // The tasks for the key's newest version at this follower's place: for the tensors, then for the files.
  std::vector<Wanted> WantedBy(const FollowerRecord& record) const;
  // `again`: makes a new task if the previous one ended without a replica.
  void Refresh(Follower& follower, bool again, SteadyTime now);
  void Release(const std::string& place);

  const Catalog& catalog_;
  const Inventory& inventory_;
  Tasks& tasks_;
  absl::btree_map<std::string, Follower> followers_;                      // by FollowerIdOf
  absl::flat_hash_map<std::string, std::set<std::string>> ids_of_nodes_;  // by node id
  absl::flat_hash_map<std::string, int> wanted_;  // place of a task -> number of followers that want the task
  uint64_t attempts_ = 0;                         // number of repeated attempts
};

}  // namespace tensorcast::global_store
