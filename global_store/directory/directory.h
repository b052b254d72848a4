// The directory: all knowledge of the global store, as a deterministic state machine. It has no clock,
// randomness, threads or I/O: callers pass the time, `Secrets` makes ids and keys, and durable changes are
// made in two steps.
//
//   plan = directory.catalog().PrepareBindKey(...)   // const: checks, and says which facts would change
//   store.Commit(plan.facts)               // by the caller, without the directory's lock if it likes
//   directory.Apply(plan.facts, now)       // cannot fail; also how the directory is loaded at start
//
// REQUIRES between Prepare and Apply: no other durable change (callers serialise these). Soft state (nodes,
// replicas, grants) changes at once and may change in between.
//
// Each room of the state is a class: catalog, membership, inventory (with evictions and accusations),
// rollouts, transfers, tasks, followers, announcements and rollups. A room only reads the rooms before it in
// this list. The directory owns them, makes the changes that touch several rooms, in order, and answers
// questions about several. Callers ask a room directly for its own state; they leave functions that a room's
// header reserves for the directory to the directory.
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
  // How long an origin that was found intact counts as a copy, and how long a node that did not answer about
  // one is not asked again.
  absl::Duration origin_finding_age = absl::Seconds(2);
};

struct PublishRequest {
  NodeIdentity node;
  ArtifactRecord artifact;  // id, sizes and counts; the directory sets the rest
  std::optional<ReplicaInfo> replica;
  std::optional<Origin> origin;
  std::string key;  // empty: no key is bound
  std::optional<uint64_t> expected_revision;
  std::optional<uint32_t> keep;  // as in BindRequest, like files_id
  std::string files_id = {};
  std::optional<ArtifactRecord> difference = {};  // makes the artifact; its kind, ends and sizes
  std::optional<ReplicaInfo> difference_replica = {};
};

// A node's report in a heartbeat of what it holds, to compare with the directory.
struct HeldByNode {
  std::optional<uint64_t> inventory_digest;  // as for Inventory::Compare
  std::vector<std::string> served_grants;    // grants with open pulls at the node
};

// Checks that listed replicas are held, and that ended grants are closed at both ends: the number of
// comparisons and of violations.
struct Conservation {
  uint64_t inventories = 0;
  uint64_t grants = 0;
  uint64_t inventory_violations = 0;
  uint64_t grant_violations = 0;
  std::vector<std::string> found = {};  // for people; only the beginning of a lasting violation
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
  // Over all heartbeats; `found` only has the last violation.
  const Conservation& conservation() const { return conservation_; }

  void Apply(const DurableFacts& facts, SteadyTime now);
  // Applies all stored facts at the start.
  void Load(const DurableFacts& facts, SteadyTime now);

  // Fails for an unregistered node; for the key as Catalog::PrepareBindKey.
  absl::StatusOr<PublishPlan> PreparePublish(const PublishRequest& request, absl::Time now) const;
  // Adds the replica of a publication, after Apply. Ignored when its node was replaced or expired meanwhile.
  void AddPublishedReplica(const NodeIdentity& node, const ReplicaInfo& replica);

  // The path with the min number of bytes to the artifact from one of the `held`, by differences that a
  // reachable node has whole. Chunks that come whole beside them are not counted. Empty where no path has
  // fewer bytes than half the image.
  std::vector<DifferenceEdge> DifferencesTo(std::string_view artifact_id,
                                            const std::set<std::string, std::less<>>& held) const;

  // Whether there are released artifacts without a replica on any node, or differences that are not kept; and
  // the facts that delete a limited number of them.
  bool HasReleases(SteadyTime now) const { return !ReleasedForGood(now, 1).empty(); }
  DurableFacts PrepareReleases(SteadyTime now, absl::Time wall_now) const;

  // Errors as Membership::CheckRegistration.
  absl::StatusOr<Registration> RegisterNode(const NodeFacts& facts, std::vector<PoolFacts> pools,
                                            SteadyTime now);
  absl::StatusOr<HeartbeatReply> Heartbeat(const NodeIdentity& node, std::vector<PoolFacts> pools,
                                           const std::vector<std::string>& active_grants,
                                           uint64_t inventory_sequence, SteadyTime now,
                                           const HeldByNode& held = {});
  // As Membership::SetDraining.
  absl::Status DrainNode(std::string_view node_id, bool draining);

  // As Transfers::RequestGrant. First lists the replica that the request fills, as a report of its node would.
  absl::StatusOr<GrantOffer> RequestGrant(const GrantRequest& request, SteadyTime now);
  // Returns true when an update was missed and an inventory is wanted.
  absl::StatusOr<bool> UpdateReplicas(const NodeIdentity& node, uint64_t sequence,
                                      const std::vector<ReplicaInfo>& replicas, SteadyTime now);
  // Replaces all known replicas of the node; returns artifacts that the directory never heard of. An
  // inventory older than the last update changes nothing, and another is requested.
  absl::StatusOr<std::vector<std::string>> ReconcileInventory(const NodeIdentity& node, uint64_t sequence,
                                                              const std::vector<ReplicaInfo>& replicas,
                                                              SteadyTime now);
  // Records what the origin's node found, or that it did not answer (Catalog::NoteOrigin,
  // Membership::NoteSilent).
  void NoteOrigin(std::string_view artifact_id, const Origin& origin, OriginFinding finding,
                  std::string_view reason, SteadyTime now);

  // Expires nodes and grants, and returns these nodes.
  std::vector<NodeView> Tick(SteadyTime now);
  // The store could not hear nodes for `gap`, since it was stopped or behind: nodes and grants get that time
  // back.
  void ExtendLiveness(absl::Duration gap);

  DirectoryCounts counts() const;

 private:
  friend class DirectoryInvariants;  // tests

  // Drops a node's soft state and ends its grants as expired.
  void DropNode(const std::string& node_id, SteadyTime now);
  void NoteFills(const GrantRequest& request, SteadyTime now);
  Conservation Compare(const Node& node, uint64_t sequence, const HeldByNode& held, SteadyTime now);
  std::vector<std::string> ReleasedForGood(SteadyTime now, size_t limit) const;

  const absl::Duration node_ttl_;  // for a small fleet
  // Each room reads the ones before it.
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
  SteadyTime releases_from_ = SteadyTime::InfinitePast();  // until then a node may not have reported its
                                                           // replicas
};

}  // namespace tensorcast::global_store
