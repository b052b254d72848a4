// The directory: the global store's state, as a deterministic state machine without threads or I/O. Callers
// pass the time; `Secrets` makes ids and keys. A durable change has two steps:
//
//   plan = directory.catalog().PrepareBindKey(...)  // const: checks, and returns the facts to change
//   store.Commit(plan.facts)                        // does not need the directory's lock
//   directory.Apply(plan.facts, now)                // cannot fail
//
// REQUIRES: between Prepare and Apply, the other durable changes use other names (coordinator/claims.h). Soft
// state (nodes, replicas, grants) may change between the two steps.
//
// The directory owns the rooms: one class for each part of the state (see the members). The directory makes
// the changes that touch several rooms. Callers use a room directly for its own state, but do not call
// functions that the room's header reserves for the directory.
//
// Thread-compatible: one caller at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "global_store/catalog/catalog.h"
#include "global_store/followers/followers.h"
#include "global_store/inventory/accusations.h"
#include "global_store/inventory/evictions.h"
#include "global_store/inventory/inventory.h"
#include "global_store/membership/membership.h"
#include "global_store/rollouts/rollout_log.h"
#include "global_store/rollups/rollups.h"
#include "global_store/tasks/tasks.h"
#include "global_store/transfers/transfers.h"
#include "global_store/version_groups/announcements.h"

namespace tensorcast::global_store {

struct DirectoryOptions {
  MembershipOptions membership = {};
  TransferOptions transfers = {};
  TaskOptions tasks = {};
  Retention retention = {};
  // How long an origin counts as a copy after a check found it intact. Also the pause before the store asks a
  // silent node about an origin again.
  absl::Duration origin_finding_age = absl::Seconds(2);
};

struct PublishRequest {
  NodeIdentity node;
  ArtifactRecord artifact;  // id, sizes and counts; the directory sets the rest
  std::optional<ReplicaInfo> replica;
  std::optional<Origin> origin;
  std::string key;  // empty: no key is bound
  std::optional<uint64_t> expected_revision;
  std::optional<uint32_t> keep;  // `keep` and `files_id` are as in BindRequest
  std::string files_id = {};
  std::optional<ArtifactRecord> difference = {};  // a difference that makes the artifact
  std::optional<ReplicaInfo> difference_replica = {};
};

// What a node holds, as its heartbeat reports. The directory compares this report with its own state.
struct HeldByNode {
  std::optional<uint64_t> inventory_digest;  // see Inventory::Compare
  std::vector<std::string> served_grants;    // grants with open pulls at the node
};

// The results of two checks: nodes hold the replicas that the directory lists, and nodes have closed the
// grants that ended.
struct Conservation {
  uint64_t inventories = 0;  // number of compared inventories
  uint64_t grants = 0;       // number of compared grants
  uint64_t inventory_violations = 0;
  uint64_t grant_violations = 0;
  std::vector<std::string> found = {};  // for people; a lasting violation is listed only once
};

struct HeartbeatReply {
  bool inventory_wanted = false;
  std::vector<std::string> revoked_grants;
  std::vector<std::string> forgotten_artifacts;
  std::vector<std::string> evict_replicas;
  absl::Duration grant_key_age;
  Liveness liveness;
  Conservation conservation = {};  // the comparisons of this heartbeat
};

struct DirectoryCounts {
  uint64_t nodes = 0;
  uint64_t artifacts = 0;  // without differences
  uint64_t keys = 0;
  uint64_t replicas = 0;
  uint64_t active_grants = 0;
  uint64_t open_tasks = 0;
  uint64_t differences = 0;  // kept ones
  uint64_t difference_bytes = 0;
};

class Directory {
 public:
  // `secrets` must outlive the directory.
  Directory(const DirectoryOptions& options, Secrets* secrets);
  Directory(const Directory&) = delete;  // the rooms refer to each other

  const Catalog& catalog() const { return catalog_; }
  Catalog& catalog() { return catalog_; }
  const Membership& membership() const { return membership_; }
  Membership& membership() { return membership_; }
  const Inventory& inventory() const { return inventory_; }
  const Evictions& evictions() const { return evictions_; }
  Evictions& evictions() { return evictions_; }
  Accusations& accusations() { return accusations_; }
  Transfers& transfers() { return transfers_; }
  const Tasks& tasks() const { return tasks_; }
  Tasks& tasks() { return tasks_; }
  const Followers& followers() const { return followers_; }
  const Announcements& announcements() const { return announcements_; }
  Announcements& announcements() { return announcements_; }
  Rollups& rollups() { return rollups_; }
  const RolloutLog& rollouts() const { return rollouts_; }
  // The sum over all heartbeats; `found` has only the last violation.
  const Conservation& conservation() const { return conservation_; }

  void Apply(const DurableFacts& facts, SteadyTime now);
  // Applies all stored facts at the start.
  void Load(const DurableFacts& facts, SteadyTime now);

  // Errors of Membership::CheckIdentity, Inventory::Check and the catalog. INVALID_ARGUMENT: parts conflict.
  absl::StatusOr<PublishPlan> PreparePublish(const PublishRequest& request, absl::Time now) const;
  // Adds the replica of a publication. Call this after Apply. Does nothing if the node was replaced or has
  // expired.
  void AddPublishedReplica(const NodeIdentity& node, const ReplicaInfo& replica);

  // The cheapest path (CheapestPath) from a `held` artifact to this artifact. For each difference on the
  // path, a reachable node has a whole replica. The path's sum leaves out chunks of the artifact that a
  // receiver must fetch, too. Empty if no path has a sum below half the artifact's image.
  std::vector<DifferenceEdge> DifferencesTo(std::string_view artifact_id,
                                            const std::set<std::string, std::less<>>& held) const;

  // Whether PrepareReleases has something to delete.
  bool HasReleases(SteadyTime now) const { return !ReleasedForGood(now, 1).empty(); }
  // Plans to delete released artifacts without a replica on any node, and differences that are not kept. The
  // number of deletions in one plan is limited.
  DurableFacts PrepareReleases(SteadyTime now, absl::Time wall_now) const;

  // Errors are those of Membership::CheckRegistration.
  absl::StatusOr<Registration> RegisterNode(const NodeFacts& facts, std::vector<PoolFacts> pools,
                                            SteadyTime now);
  absl::StatusOr<HeartbeatReply> Heartbeat(const NodeIdentity& node, std::vector<PoolFacts> pools,
                                           const std::vector<std::string>& active_grants,
                                           uint64_t inventory_sequence, SteadyTime now,
                                           const HeldByNode& held = {});
  // As Membership::SetDraining.
  absl::Status DrainNode(std::string_view node_id, bool draining);

  // Like Transfers::RequestGrant. Also lists the replica that the request fills.
  absl::StatusOr<GrantOffer> RequestGrant(const GrantRequest& request, SteadyTime now);
  // Returns true if the directory missed an update: the node must send its inventory.
  absl::StatusOr<bool> UpdateReplicas(const NodeIdentity& node, uint64_t sequence,
                                      const std::vector<ReplicaInfo>& replicas, SteadyTime now);
  // Replaces all known replicas of the node. Returns the reported artifacts that the directory does not know.
  // An inventory that is older than the last update changes nothing, and the directory requests another
  // inventory.
  absl::StatusOr<std::vector<std::string>> ReconcileInventory(const NodeIdentity& node, uint64_t sequence,
                                                              const std::vector<ReplicaInfo>& replicas,
                                                              SteadyTime now);
  // Records what the origin's node found. kSilent: the node did not answer.
  void NoteOrigin(std::string_view artifact_id, const Origin& origin, OriginFinding finding,
                  std::string_view reason, SteadyTime now);

  // Expires nodes and grants, and returns the expired nodes.
  std::vector<NodeView> Tick(SteadyTime now);
  // Extends the lives of nodes and grants by `gap`. Call this if the store could not handle calls of nodes
  // for that time.
  void ExtendLiveness(absl::Duration gap);

  DirectoryCounts counts() const;

 private:
  friend class DirectoryInvariants;  // tests

  // Drops a node's soft state and ends its grants as expired.
  void DropNode(const std::string& node_id, SteadyTime now);
  void NoteFills(const GrantRequest& request, SteadyTime now);
  Conservation Compare(const Node& node, uint64_t sequence, const HeldByNode& held, SteadyTime now);
  std::vector<std::string> ReleasedForGood(SteadyTime now, size_t limit) const;

  const absl::Duration node_ttl_;  // of a small fleet
  // Each room uses only rooms that are declared above it.
  Catalog catalog_;
  Membership membership_;
  Inventory inventory_;
  Evictions evictions_;
  Accusations accusations_;
  RolloutLog rollouts_;
  Transfers transfers_;
  Tasks tasks_;
  Followers followers_;
  Announcements announcements_;
  Rollups rollups_;
  Conservation conservation_;
  // Before this time nothing is released, because nodes may not have reported their replicas yet.
  SteadyTime releases_from_ = SteadyTime::InfinitePast();
};

}  // namespace tensorcast::global_store
