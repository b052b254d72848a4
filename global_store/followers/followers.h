// Followers: places that are kept at the newest version of a key. A follower is a durable fact; the task that
// brings the newest version to its place is soft state, derived from the fact. The task is made when the key
// is bound and when the node is back, and cancelled if the key is bound again before the task has ended. So a
// follower has at most one task for the tensors and one for the files that the key binds with them, even if
// the key is bound often.
//
// The newest version is the key's current binding: a rollback is a new revision. A replica that is evicted
// later is not brought again before the next version or the next start of the node.
//
// Reads membership, catalog and inventory, and makes and erases tasks; all must outlive this object.
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
  Followers(const Catalog& catalog, const Inventory& inventory, Tasks* tasks)
      : catalog_(catalog), inventory_(inventory), tasks_(*tasks) {}

  // A target that already follows the key stays unchanged. Errors are those of CheckKeyName; the error of a
  // single target is in FollowPlan::Place.
  absl::StatusOr<FollowPlan> Prepare(const FollowRequest& request, absl::Time now) const;
  // Plans to remove followers of a key at these places, at most `limit` of them. No targets: all places.
  UnfollowPlan PrepareRemove(std::string_view key, const std::vector<TaskTarget>& targets,
                             size_t limit) const;
  // Plans to remove all followers of a node.
  UnfollowPlan PrepareForget(std::string_view node_id) const;
  void Apply(const FollowerRecord& record, SteadyTime now);

  // Call this after the key was bound or deleted.
  void NoteKey(std::string_view key, SteadyTime now);
  // Call this after the node's inventory arrived. `registered`: this is the first inventory since the node
  // registered; then failed tasks are tried again, and evicted replicas are brought again.
  void NoteInventory(std::string_view node_id, bool registered, SteadyTime now);

  // The followers of the key (empty: of all keys), after the one that `after` names.
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

  // The newest version of the key at this follower's place: the tensors, then the files.
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
  uint64_t attempts_ = 0;                         // attempts that were made again
};

}  // namespace tensorcast::global_store
