// The directory: everything the global store knows, as a deterministic state machine. No clock, no
// randomness, no threads, no I/O: callers pass the time, `Secrets` makes ids and keys, and durable changes
// are made in two steps.
//
//   plan = directory.catalog().PrepareBindKey(...)   // const: checks, and says which facts would change
//   store.Commit(plan.facts)               // by the caller, without the directory's lock if it likes
//   directory.Apply(plan.facts, now)       // cannot fail; also how the directory is loaded at start
//
// REQUIRES between Prepare and Apply: no other durable change (callers serialise these). Soft state (nodes,
// replicas, grants) changes at once and may change in between.
//
// The state is in rooms, each a class: catalog, membership, inventory (with evictions and accusations),
// rollouts, transfers, tasks, followers, announcements and rollups. A room reads those before it in this
// list, and none after it. The directory owns them, makes the changes that touch several, in order, and
// answers what several know. Callers ask a room directly for what it alone knows; what a room's header calls
// for the directory they leave alone.
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
  // How long an origin that was found intact counts as a copy, and how long a node that was silent about one
  // is not asked again.
  absl::Duration origin_finding_age = absl::Seconds(2);
};

struct PublishRequest {
  NodeIdentity node;
  ArtifactRecord artifact;  // id, sizes and counts; the rest is filled in
  std::optional<ReplicaInfo> replica;
  std::optional<Origin> origin;
  std::string key;  // empty: none is bound
  std::optional<uint64_t> expected_revision;
  std::optional<uint32_t> keep;  // as BindRequest::keep, like the next
  std::string files_id = {};
  std::optional<ArtifactRecord> difference = {};  // that makes the artifact; its kind, ends and sizes
  std::optional<ReplicaInfo> difference_replica = {};
};

// What a node says with a heartbeat of what it has, to be compared with what the directory knows.
struct HeldByNode {
  std::optional<uint64_t> inventory_digest;  // as Inventory::Compare has it
  std::vector<std::string> served_grants;    // under which pulls are open there
};

// Replicas listed are those held, and grants that ended are closed at both ends: comparisons, and those that
// showed that it was not so.
struct Conservation {
  uint64_t inventories = 0;
  uint64_t grants = 0;
  uint64_t inventory_violations = 0;
  uint64_t grant_violations = 0;
  std::vector<std::string> found = {};  // for people; of a violation that lasts only its beginning
};

struct HeartbeatReply {
  bool inventory_wanted = false;
  std::vector<std::string> revoked_grants;
  std::vector<std::string> forgotten_artifacts;
  std::vector<std::string> evict_replicas;
  absl::Duration grant_key_age;
  Liveness liveness;
  Conservation conservation = {};  // what this heartbeat showed
};

struct DirectoryCounts {
  uint64_t nodes = 0;
  uint64_t artifacts = 0;  // without differences
  uint64_t keys = 0;
  uint64_t replicas = 0;
  uint64_t active_grants = 0;
  uint64_t open_tasks = 0;
  uint64_t differences = 0;  // that are kept
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
  // Of all heartbeats; `found` has the last violation alone.
  const Conservation& conservation() const { return conservation_; }

  void Apply(const DurableFacts& facts, SteadyTime now);
  // Apply, of all that was stored, at the start.
  void Load(const DurableFacts& facts, SteadyTime now);

  // Fails for an unregistered node, and for the key as Catalog::PrepareBindKey does.
  absl::StatusOr<PublishPlan> PreparePublish(const PublishRequest& request, absl::Time now) const;
  // After Apply: the replica that came with it. Ignored when its node was replaced or expired meanwhile.
  void AddPublishedReplica(const NodeIdentity& node, const ReplicaInfo& replica);

  // The path of the fewest bytes to the artifact from one of the `held`, by differences that a node which can
  // be reached has whole. Chunks that come whole beside them are not counted. Empty where there is none of
  // fewer bytes than half the image.
  std::vector<DifferenceEdge> DifferencesTo(std::string_view artifact_id,
                                            const std::set<std::string, std::less<>>& held) const;

  // Deletes released artifacts of which no node has a replica, and differences that are not kept, some at a
  // time.
  bool HasReleases(SteadyTime now) const { return !ReleasedForGood(now, 1).empty(); }
  DurableFacts PrepareReleases(SteadyTime now, absl::Time wall_now) const;

  // Errors as Membership::CheckRegistration's.
  absl::StatusOr<Registration> RegisterNode(const NodeFacts& facts, std::vector<PoolFacts> pools,
                                            SteadyTime now);
  absl::StatusOr<HeartbeatReply> Heartbeat(const NodeIdentity& node, std::vector<PoolFacts> pools,
                                           const std::vector<std::string>& active_grants,
                                           uint64_t inventory_sequence, SteadyTime now,
                                           const HeldByNode& held = {});
  // As Membership::SetDraining.
  absl::Status DrainNode(std::string_view node_id, bool draining);

  // True: something was missed, an inventory is wanted.
  absl::StatusOr<bool> UpdateReplicas(const NodeIdentity& node, uint64_t sequence,
                                      const std::vector<ReplicaInfo>& replicas, SteadyTime now);
  // Replaces all that is known of the node's replicas; returns artifacts that the directory never heard of.
  // An inventory older than the last update changes nothing, and another is asked for.
  absl::StatusOr<std::vector<std::string>> ReconcileInventory(const NodeIdentity& node, uint64_t sequence,
                                                              const std::vector<ReplicaInfo>& replicas,
                                                              SteadyTime now);
  // What its node found, or that it found nothing out (Catalog::NoteOrigin, Membership::NoteSilent).
  void NoteOrigin(std::string_view artifact_id, const Origin& origin, OriginFinding finding,
                  std::string_view reason, SteadyTime now);

  // Expires nodes and grants; returns the nodes.
  std::vector<NodeView> Tick(SteadyTime now);
  // The store could not hear nodes for that long, since it was stopped or behind: nodes and grants get the
  // time again.
  void ExtendLiveness(absl::Duration gap);

  DirectoryCounts counts() const;

 private:
  friend class DirectoryInvariants;  // tests

  // Drops a node's soft state and ends its grants as expired.
  void DropNode(const std::string& node_id, SteadyTime now);
  Conservation Compare(const Node& node, uint64_t sequence, const HeldByNode& held, SteadyTime now);
  std::vector<std::string> ReleasedForGood(SteadyTime now, size_t limit) const;

  const absl::Duration node_ttl_;  // of a small fleet
  // Each reads those before it.
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
  SteadyTime releases_from_ = SteadyTime::InfinitePast();  // before, no node may have said what it holds
};

}  // namespace tensorcast::global_store
