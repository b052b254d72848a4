// The directory: everything the global store knows, as a deterministic state machine. No clock, no
// randomness, no threads, no I/O: callers pass the time, `Secrets` makes ids and keys, and durable changes
// are made in two steps.
//
//   plan = directory.PrepareBindKey(...)   // const: checks, and says which facts would change
//   store.Commit(plan.facts)               // by the caller, without the directory's lock if it likes
//   directory.Apply(plan.facts, now)       // cannot fail; also how the directory is loaded at start
//
// REQUIRES between Prepare and Apply: no other durable change (callers serialise these). Soft state (nodes,
// replicas, grants) changes at once and may change in between.
//
// Calls that name a NodeIdentity fail with ABORTED for an incarnation that was replaced by one that is alive,
// and with NOT_FOUND for a node that is not registered (any more): it registers again and sends its
// inventory.
//
// Thread-compatible: one caller at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "global_store/membership/liveness.h"
#include "global_store/catalog/retention.h"
#include "global_store/directory/types.h"
#include "global_store/scheduler/scheduler.h"

namespace tensorcast::global_store {

// The directory's only source of randomness.
class Secrets {
 public:
  virtual ~Secrets() = default;
  virtual std::string NewGrantId() = 0;
  virtual std::string NewGrantKey() = 0;  // 32 secret bytes
};

struct DirectoryOptions {
  // Of a small fleet; both grow with it (liveness.h).
  absl::Duration heartbeat_interval = absl::Seconds(2);
  absl::Duration node_ttl = absl::Seconds(10);
  absl::Duration grant_ttl = absl::Seconds(30);
  // A node that serves this many grants of an artifact is offered only to receivers that would have no source
  // otherwise.
  uint32_t soft_grants_per_source = 7;
  // Over what replicas that fill serve; none: they are not sources.
  std::vector<std::string> filling_lanes;
  // How long an origin that was found intact counts as a copy, and how long a node that was silent about one
  // is not asked again.
  absl::Duration origin_finding_age = absl::Seconds(2);
  // How many tasks a node is given at once.
  size_t tasks_at_once = 4;
  // Before each further attempt at a task; after as many failures and one more it has failed.
  std::vector<absl::Duration> task_pauses = {absl::Seconds(5), absl::Seconds(30), absl::Minutes(2)};
  // From when the first node is told of a group until all have to have come: the others' heartbeats, and
  // their ingests' turns.
  absl::Duration group_forming = absl::Seconds(15);
  // Smaller artifacts are broadcast between nodes only when that is asked for: to form takes seconds.
  uint64_t group_min_bytes = uint64_t{1} << 30;
  // Nodes that had all come to a broadcast that failed are in none together for so long, unless that is
  // asked for.
  absl::Duration group_pause = absl::Minutes(10);
  Retention retention = {};
  // After Load, nodes that were here before get a node's time to live to come back: until then what no node
  // has is waited for. False where no other node can be (a daemon that works alone).
  bool awaits_nodes = true;
};

class Directory {
 public:
  // `secrets` must outlive the directory.
  Directory(const DirectoryOptions& options, Secrets* secrets) : options_(options), secrets_(secrets) {}

  // ---- Durable facts (artifacts.cc, keys.cc) ----
  void Apply(const DurableFacts& facts, SteadyTime now);
  // Apply, of all that was stored, at the start.
  void Load(const DurableFacts& facts, SteadyTime now);
  // Forgets tombstones, and tasks that ended, older than these, as the metadata store's Purge does.
  // `versions` is the time for the tombstones of released versions.
  void PurgeTombstones(absl::Time before, absl::Time versions);
  // The time before which tombstones of versions are to go so that few enough remain, at least `oldest`.
  absl::Time VersionTombstonesFrom(absl::Time oldest) const;
  void PurgeTasks(absl::Time before);

  // Fails for an unregistered node, and for the key as PrepareBindKey does. A tombstone of the artifact is
  // lifted.
  absl::StatusOr<PublishPlan> PreparePublish(const PublishRequest& request, absl::Time now) const;
  // After Apply: the replica that came with it. Ignored when its node was replaced or expired meanwhile.
  void AddPublishedReplica(const NodeIdentity& node, const ReplicaInfo& replica);
  // After Apply: the origin that came with it was read just now, whatever was found of it before.
  void RenewOrigin(std::string_view artifact_id, std::string_view node_id);
  // FAILED_PRECONDITION, naming keys, while any is bound to it. Keys that keep it as an earlier version lose
  // that version.
  absl::StatusOr<DurableFacts> PrepareDeleteArtifact(std::string_view artifact_id, absl::Time now) const;

  // FAILED_PRECONDITION, naming the current revision, when `expected` differs from it (0: must not exist).
  absl::StatusOr<KeyPlan> PrepareBindKey(const BindRequest& request, absl::Time now) const;
  // The artifact that it names stays until it is deleted; versions that it kept are released.
  absl::StatusOr<KeyPlan> PrepareDeleteKey(std::string_view key, std::optional<uint64_t> expected,
                                           absl::Time now) const;
  absl::StatusOr<KeyRecord> ResolveKey(std::string_view key) const;
  // Those with the prefix after `after`, at most `limit`, in order of name.
  std::vector<KeyRecord> ListKeys(std::string_view prefix, std::string_view after, size_t limit) const;

  // How many versions of it are kept, the current one among them.
  uint32_t KeepOf(const KeyRecord& key) const;

  // ---- Versions that no key keeps (versions.cc) ----
  // Deletes the artifact of which this replica is the last copy; no facts where it may not, or need not, go.
  DurableFacts PrepareReleaseOf(const ReplicaName& replica, const Proofs& proofs, absl::Time now) const;
  // Deletes released artifacts of which no node has a replica, some at a time.
  bool HasReleases(SteadyTime now) const { return !ReleasedWithoutReplica(now, 1).empty(); }
  DurableFacts PrepareReleases(SteadyTime now, absl::Time wall_now) const;

  // ---- Nodes (nodes.cc) ----
  // Why a certificate's name may not speak for this node id: PERMISSION_DENIED when it is another's.
  absl::Status CheckBinding(std::string_view node_id, std::string_view name) const;
  // Binds the node id to the node's name, as its certificate has it; no facts where it is. A name has one
  // node id: the previous one is then unbound. Errors as CheckBinding's and RegisterNode's.
  absl::StatusOr<DurableFacts> PrepareBindNode(const NodeFacts& facts) const;
  // The next node to register may have the node id. NOT_FOUND when it is bound to none, FAILED_PRECONDITION
  // while the node is alive.
  absl::StatusOr<DurableFacts> PrepareForgetNode(std::string_view node_id) const;

  // ALREADY_EXISTS when another live node has the name; ABORTED when the node is alive with a higher
  // incarnation, or with the same one at another address. The same incarnation registering again keeps its
  // state and key.
  absl::StatusOr<Registration> RegisterNode(const NodeFacts& facts, std::vector<PoolFacts> pools,
                                            SteadyTime now);
  absl::StatusOr<HeartbeatReply> Heartbeat(const NodeIdentity& node, std::vector<PoolFacts> pools,
                                           const std::vector<std::string>& active_grants,
                                           uint64_t inventory_sequence, SteadyTime now);
  // Until the end of its incarnation, or until this is called with `draining` false. NOT_FOUND when the node
  // is not alive.
  absl::Status DrainNode(std::string_view node_id, bool draining);
  // Its advertised port does not answer, as it says itself: until it does the node is not offered as a
  // source.
  absl::Status SetUnreachable(const NodeIdentity& node, bool unreachable);
  // GPUs on which nothing works, by ordinal; for people.
  absl::Status SetUnhealthyDevices(const NodeIdentity& identity, std::vector<int> devices);
  absl::StatusOr<NodeView> FindNode(std::string_view node_id, SteadyTime now) const;
  // OK, or why calls of this identity are refused.
  absl::Status CheckIdentity(const NodeIdentity& node) const;

  // ---- Listings in pages (listings.cc) ----
  // With its replicas, from where an earlier view of it left off.
  absl::StatusOr<ArtifactView> DescribeArtifact(std::string_view artifact_id, std::string_view after = "",
                                                const PageBounds& bounds = {}) const;
  // In order of id, from where the previous page left off; "": from the beginning. An artifact with listed
  // replicas that do not fit comes again on the next page, with more of them.
  ArtifactPage ListArtifacts(std::string_view after, const PageBounds& bounds,
                             const ArtifactFilter& filter) const;
  // In order of id, from where the previous page left off.
  NodePage ListNodes(std::string_view after, const PageBounds& bounds, SteadyTime now) const;
  // Those with these names, in order of name.
  NodePage FindNodesNamed(const std::set<std::string, std::less<>>& names, std::string_view after,
                          const PageBounds& bounds, SteadyTime now) const;
  uint64_t CountDraining() const;

  // ---- Inventory (inventory.cc) ----
  // True: something was missed, an inventory is wanted.
  absl::StatusOr<bool> UpdateReplicas(const NodeIdentity& node, uint64_t sequence,
                                      const std::vector<ReplicaInfo>& replicas, SteadyTime now);
  // Replaces all that is known of the node's replicas; returns artifacts that the directory never heard of.
  // An inventory older than the last update changes nothing, and another is asked for.
  absl::StatusOr<std::vector<std::string>> ReconcileInventory(const NodeIdentity& node, uint64_t sequence,
                                                              const std::vector<ReplicaInfo>& replicas,
                                                              SteadyTime now);
  // ---- Evictions (evictions.cc) ----
  // Granted unless it is the last copy; copies on other nodes count where `proofs` names them as proven.
  // NOT_FOUND, and an inventory is wanted, for a replica that the node has not reported yet. A replica
  // granted for eviction is no longer offered.
  absl::StatusOr<EvictionDecision> RequestEviction(const NodeIdentity& node, std::string_view replica_id,
                                                   SteadyTime now, const Proofs& proofs = {});
  // ---- Accusations (accusations.cc) ----
  // Replicas that were accused since the last call: their nodes are to digest them again.
  std::vector<CopyToProve> TakeAccused();
  // Its node did, and the bytes match the manifest, as it says.
  void NoteIntact(const ReplicaName& replica);
  // The node kept a replica that it was allowed to evict: it counts again.
  absl::Status WithdrawEviction(const NodeIdentity& node, std::string_view replica_id);

  // ---- Origins (origins.cc) ----
  // What its node found, or that it found nothing out. One that is gone stays so until it is published again.
  // Ignored when another origin of that node is on record by now.
  void NoteOrigin(std::string_view artifact_id, const Origin& origin, OriginFinding finding,
                  std::string_view reason, SteadyTime now);
  // How it went to have an origin read (GrantOffer::origin_to_read). Until this is told, or an hour is
  // over, receivers wait for it; one that could not be read is tried again after some seconds.
  void NoteReading(const OriginToCheck& origin, const absl::Status& read, SteadyTime now);

  // ---- Tasks (tasks.cc) ----
  // What is there already is not requested, an open task stays as it is, and a task that failed, or that
  // lost its replica, is made anew. NOT_FOUND for an unknown artifact; what is wrong with a target is in its
  // place.
  absl::StatusOr<TaskPlan> PrepareTasks(const TaskRequest& request, absl::Time now) const;
  // Forgets the open ones of an artifact at these places; none: everywhere.
  CancelPlan PrepareCancelTasks(std::string_view artifact_id, const std::vector<TaskTarget>& targets,
                                absl::Time now) const;
  // Those of the artifact (empty: of all), in a fixed order, after the place that `after` names.
  std::vector<TaskView> ListReplicationTasks(std::string_view artifact_id, std::string_view after,
                                             size_t limit) const;
  // What ListReplicationTasks goes on after.
  static std::string TaskKeyOf(const TaskRecord& task);

  // What the node says of those that it works on. One that is not known, or that ended, is ignored.
  absl::Status NoteTasks(const NodeIdentity& node, const std::vector<TaskReport>& reports);
  // All that the node is to work on now, those first that it works on already. One that is missing here was
  // taken back. Nothing new for a node that drains.
  absl::StatusOr<std::vector<TaskRecord>> TakeTasks(const NodeIdentity& node, SteadyTime now);
  // What changed since the last call: of each task how it is now, progress and what it waits for included.
  bool HasChangedTasks() const { return !changed_tasks_.empty(); }
  std::vector<TaskChange> TakeChangedTasks();
  // Makes durable how attempts ended that NoteTasks heard of.
  bool HasTasksToSettle() const { return !tasks_to_settle_.empty(); }
  DurableFacts PrepareSettleTasks(absl::Time now) const;

  // ---- Groups (groups.cc) ----
  void SetBroadcasts(std::string_view node_id, BroadcastAbility ability);
  void AddGroup(GroupPlan plan);
  // Those that form, of a node: their time runs from the first call that names them.
  std::vector<NodeGroup> GroupsOf(std::string_view node_id, SteadyTime now);
  // This node's ranks are ready; `root` from the root's node alone. nullopt: others are not yet. ABORTED with
  // the reason for a group that is over, NOT_FOUND for one that is not known or is without this node.
  absl::StatusOr<std::optional<GroupRoot>> JoinGroup(const NodeIdentity& node, std::string_view group_id,
                                                     const std::optional<GroupRoot>& root, SteadyTime now);
  // This node does not take part, or does no more. Nothing happens to one that is not known or is over.
  absl::Status EndGroup(const NodeIdentity& node, std::string_view group_id, const absl::Status& why,
                        SteadyTime now);

  // ---- Grants (grants.cc) ----
  absl::StatusOr<GrantOffer> RequestGrant(const GrantRequest& request, SteadyTime now);
  // `end` is how the receiver says it ended. OK for a grant that is unknown or has ended. The source is told,
  // too: a call that opened its pull may reach it only after the receiver gave up, and the one that closes it
  // never.
  absl::Status CompleteGrant(const NodeIdentity& receiver, std::string_view grant_id, GrantEnd end,
                             bool source_corrupt, SteadyTime now);
  const Grant* FindGrant(std::string_view grant_id) const;
  // The same offer again while its grant lives; nullopt after.
  std::optional<GrantOffer> RepeatOffer(std::string_view grant_id, SteadyTime now) const;
  // Grants that ended since the last call, each once.
  std::vector<EndedGrant> TakeEndedGrants() { return std::exchange(ended_, {}); }

  // Expires nodes and grants; returns the nodes.
  std::vector<NodeView> Tick(SteadyTime now);
  // The store could not hear nodes for that long, since it was stopped or behind: nodes and grants get the
  // time again.
  void ExtendLiveness(absl::Duration gap);

  DirectoryCounts counts() const;
  // Visits every replica.
  std::map<std::pair<LocationKind, ReplicaState>, uint64_t> CountReplicas() const;

 private:
  friend class DirectoryInvariants;  // tests

  struct HeldReplica {
    ReplicaInfo facts;
    bool evicting = false;                // counted out by RequestEviction
    bool corrupt = false;                 // a receiver's digests did not match (accusations.cc)
    std::set<std::string> accusers = {};  // names of the nodes that said so
    SteadyTime digested_by = SteadyTime::InfinitePast();  // its holder digests it again, until then
    uint32_t looks = 0;  // while it fills: how often it was told to look for more sources
    // While it fills: it leaves the network to a hostmate at most until then; infinite: it was not told to.
    SteadyTime hostmates_until = SteadyTime::InfiniteFuture();
    bool IsReady() const { return facts.state == ReplicaState::kReady && !evicting && !corrupt; }
    // It is whole and verified, as its holder says, whatever others say of its bytes: it is not evicted as if
    // it were worth nothing.
    bool Matters() const {
      return facts.state == ReplicaState::kReady && !evicting && facts.chunks_unverified == 0;
    }
    // It is whole, and verified: it serves, and counts as a copy.
    bool IsSource() const { return IsReady() && facts.chunks_unverified == 0; }
    // It serves what it has, and never counts as a copy: host memory that fills from a manifest which is
    // known (a first ingest names no artifact yet), or that rests as it is.
    bool ServesParts() const {
      return (facts.state == ReplicaState::kFilling || IsPartial()) &&
             facts.location.kind == LocationKind::kCpu && !facts.artifact_id.empty() && !evicting && !corrupt;
    }
    // No transfer brings the rest of it, so that it leads to no other source and no receiver waits for it.
    bool IsPartial() const { return facts.state == ReplicaState::kPartial; }
    bool CanServe() const { return IsSource() || ServesParts(); }
    bool IsFilling() const {
      return (facts.state == ReplicaState::kAllocating || facts.state == ReplicaState::kFilling) &&
             !evicting && !corrupt;
    }
  };
  struct NodeState {
    NodeFacts facts;
    std::string grant_key;
    SteadyTime grant_key_given;
    bool draining = false;
    bool unreachable = false;
    std::vector<PoolFacts> pools;
    SteadyTime last_heartbeat;
    // Told with the last answer; the node may not have heard it, and goes by the one before then.
    absl::Duration told_ttl = absl::ZeroDuration();
    absl::Duration ttl = absl::ZeroDuration();  // silent for longer it is gone
    uint64_t sequence = 0;                      // of the last inventory change that was applied
    uint64_t reported_sequence = 0;  // by the heartbeat before: what it names must have arrived by the next
    bool inventory_wanted = true;
    SteadyTime registered;
    bool reported = false;                                     // its inventory arrived since it registered
    LaneEnd end;                                               // what the scheduler needs of `facts`
    std::map<std::string, HeldReplica, std::less<>> replicas;  // pointed at by the index of sources
    absl::btree_map<std::string, SteadyTime> revoked;          // grant id -> when to stop repeating it
    std::vector<const Grant*> serving;                         // active grants with this node as the source
    absl::flat_hash_map<std::string, uint32_t> uploads;        // how many those are, by artifact id
    std::vector<const Grant*> receiving;                       // and as the receiver
    // A receiver of a grant had nothing of it in time: until then others are asked first.
    SteadyTime overtaken_until = SteadyTime::InfinitePast();
    absl::Duration overtaken_rest = absl::ZeroDuration();  // the last one; zero: it has served since
    SteadyTime silent_since =
        SteadyTime::InfinitePast();  // the last time that it was asked of an origin in vain
  };
  struct OriginNote {
    OriginFinding finding = OriginFinding::kIntact;  // never kSilent: that is about the node
    std::string reason;                              // why it is gone, or how far a comparison is
    SteadyTime noted;
  };
  // An origin that is read for other nodes, or could not be.
  struct OriginReading {
    std::string error;  // empty: it is under way
    SteadyTime until;   // from then on it is as if it had not been tried
  };
  // What a receiver was told to wait for, until it asks again, or should have and has no replica that fills.
  struct Waiting {
    std::vector<std::string> nodes;  // any of them
    bool reports = false;            // or nodes that have yet to report
    SteadyTime until;
  };
  struct ArtifactState {
    ArtifactRecord record;
    std::set<std::string> keys;
    std::set<std::string> kept_by;                                // keys of which it is an earlier version
    std::map<std::string, OriginNote, std::less<>> origin_notes;  // by node id; of the origins in `record`
    std::map<std::string, OriginReading, std::less<>> readings;   // by node id
  };
  struct HeldTask {
    TaskRecord record;
    // Soft: the node was told of it, or says that it works on it. Ends with the attempt, and with the node.
    bool handed_out = false;
    uint64_t bytes = 0;
    uint64_t bytes_total = 0;
    SteadyTime due = SteadyTime::InfinitePast();  // not handed out before, after a failure
    std::optional<absl::Status> ended;            // the attempt, until that is durable
  };
  // Soft: a store that restarts knows of none, and all go on with pulls. It goes when its time to form is
  // over and it did not, or it has ended, or no task of it is open.
  struct Group {
    GroupPlan plan;
    std::optional<SteadyTime> forms_until;     // no node was told of it yet
    std::set<std::string, std::less<>> nodes;  // that have yet to come
    std::optional<GroupRoot> root;
    absl::Status over;
  };
  // Soft: why the nodes of a group could not broadcast may not have changed yet.
  struct FailedGroup {
    std::set<std::string, std::less<>> nodes;
    SteadyTime until;
  };
  // What a node that is gone held when it was last heard: it may come back with it.
  struct AwayNode {
    std::string name;
    SteadyTime since;
    std::set<std::string, std::less<>> artifacts;
  };
  // The index of sources: which can serve an artifact, by scope, in an order that says nothing about them, so
  // that a few in a row from anywhere are a sample.
  struct SourceRef {
    NodeState* node = nullptr;
    HeldReplica* replica = nullptr;
  };
  // By spread id, then id and node: ids are unique within a node only, since nodes choose them.
  using SourceSet = absl::btree_map<std::pair<uint64_t, std::string>, SourceRef>;
  struct SourcesOfScope {
    SourceSet ready;
    SourceSet filling;
  };
  using HolderSet = std::set<std::pair<std::string, std::string>>;  // node id, replica id

  absl::StatusOr<NodeState*> FindLive(const NodeIdentity& node);
  absl::Status CheckName(const NodeFacts& facts) const;
  // Why it may not register, as RegisterNode says.
  Liveness LivenessNow() const;
  void NoteFleet(SteadyTime now);
  // What the node is told with the next answer.
  Liveness TellLiveness(NodeState& node);
  absl::Duration GrantTtl() const;
  absl::Status CheckRegistration(const NodeFacts& facts) const;
  // Drops a node's soft state and ends its grants as expired.
  void DropNode(std::string_view node_id, SteadyTime now);

  absl::Status ValidateReplica(const NodeState& node, const ReplicaInfo& replica) const;
  // Those that are valid: one bad entry is not a reason to refuse the others.
  std::vector<ReplicaInfo> ValidReplicas(const NodeState& node,
                                         const std::vector<ReplicaInfo>& replicas) const;
  void PutReplica(NodeState& node, const ReplicaInfo& replica);
  void RemoveReplica(NodeState& node, const std::string& replica_id, SteadyTime now);
  // accusations.cc
  void NoteAccusation(const Grant& grant, SteadyTime now);
  // Replicas that this receiver may be given once their holders have digested them again, for people.
  std::vector<std::string> AccusedElsewhere(const GrantRequest& request, const NodeState& receiver,
                                            const SourceQuery& query, SteadyTime now) const;
  bool HasWeight(const std::string& accuser) const;
  // Whether one of the names is this replica's: its id, or its node's id, '/' and its id, which no other node
  // can make its own.
  static bool Names(const std::vector<std::string>& names, const ReplicaInfo& replica);
  // Remembers what the node could have served, for while it is away.
  void NoteAway(const NodeState& node, bool only_disk, SteadyTime now);
  // The scopes in which replicas of the artifact on that node are indexed, the widest last: where the node
  // says so its rack and its zone, then the artifact.
  static std::vector<std::string> ScopesOf(std::string_view artifact_id, const LaneEnd& end);
  static uint64_t Spread(std::string_view text);
  static SourceSet::key_type KeyOf(const ReplicaInfo& replica);
  // Around each change of what IsSource and CanServe say of a replica.
  void LeaveSources(const NodeState& node, const HeldReplica& replica);
  void JoinSources(NodeState& node, HeldReplica& replica);
  void SetFacts(NodeState& node, const NodeFacts& facts);
  // Calls `visit` for each replica of the artifact until it returns false.
  void ForEachReplica(std::string_view artifact_id,
                      const std::function<bool(const NodeState&, const HeldReplica&)>& visit) const;
  // Of one node.
  template <typename Add>
  void AddReplicasOf(std::string_view artifact_id, const std::string& node_id, Add add) const {
    auto holders = holders_.find(artifact_id);
    auto node = nodes_.find(node_id);
    if (holders == holders_.end() || node == nodes_.end()) return;
    for (auto it = holders->second.lower_bound({node_id, ""});
         it != holders->second.end() && it->first == node_id; ++it) {
      // The index of sources names them for changes too.
      auto& held = const_cast<NodeState&>(node->second).replicas.find(it->second)->second;
      add(SourceRef{const_cast<NodeState*>(&node->second), &held});
    }
  }
  // evictions.cc
  static bool Outlives(const NodeState& node, const HeldReplica& replica);
  static CopyToProve ToProve(const NodeState& node, const HeldReplica& replica);
  // The other replicas of the artifact that outlive this one of that node.
  struct Copies {
    bool counted = false;               // one at least is of the node itself, or proven
    std::vector<CopyToProve> to_prove;  // else: some that may be
    std::string unproven;               // the name of a node that did not prove its own
  };
  Copies FindCopies(const NodeState& node, const HeldReplica& replica, const Proofs& proofs) const;
  // What can be said of its origins now as copies of it.
  struct OriginsAsCopies {
    std::vector<const Origin*> intact;  // they were found so just now
    std::vector<OriginToCheck> unchecked;
    std::string others;     // the rest, for people: ", its origin on node a is gone: ..."
    std::string comparing;  // one of the rest, of which a comparison is under way, for people; empty: none
  };
  static std::string DescribeComparison(const ArtifactState& artifact, const Origin& origin,
                                        std::string_view how_far);
  OriginsAsCopies JudgeOrigins(std::string_view artifact_id, SteadyTime now) const;
  absl::StatusOr<PublishPlan> PrepareCompared(const PublishRequest& request) const;
  bool HasCopyOffDrainingNodes(const HeldReplica& replica) const;
  std::vector<std::string> ForgottenOn(const NodeState& node) const;
  std::vector<std::string> EvictableOn(const NodeState& node) const;

  absl::StatusOr<KeyRecord> PlanBinding(const BindRequest& request, absl::Time now) const;
  uint64_t CurrentRevision(std::string_view key) const;  // 0 when it is not bound
  void ApplyArtifact(const ArtifactRecord& record);
  void ApplyKey(const KeyRecord& record);
  // Makes the artifacts that a key names and keeps know of it, or know of it no more.
  void LinkKey(const KeyRecord& key);
  void UnlinkKey(const KeyRecord& key);
  static bool IsReleased(const ArtifactState& artifact) {
    return artifact.record.versioned && artifact.keys.empty() && artifact.kept_by.empty();
  }
  bool IsReleased(std::string_view artifact_id) const { return released_.contains(artifact_id); }
  // After each change of what IsReleased says.
  void NoteReleased(const std::string& artifact_id);
  std::vector<std::string> ReleasedWithoutReplica(SteadyTime now, size_t limit) const;
  // Why the last copy of it stays, and what a person can do; for an answer to RequestEviction.
  std::string WhyItStays(std::string_view artifact_id, std::string_view origins) const;
  void ApplyTask(const TaskRecord& record, SteadyTime now);
  void EraseTask(const std::string& place);
  // Around TakeChangedTasks: of one; of all open ones of a node, which wait for something else now.
  void NoteChange(const HeldTask& task, bool gone = false);
  void NoteChanges(std::string_view node_id);
  // The node's go back to those that wait.
  void ReleaseTasks(std::string_view node_id);
  TaskView ViewOf(const HeldTask& task) const;
  std::string WhatTaskWaitsFor(const TaskRecord& task) const;
  // The task as it is once the end of its attempt is durable.
  TaskRecord Settled(const HeldTask& task, absl::Time now) const;
  // By id or by name, also nodes that are away: id and name. NOT_FOUND for one that was never heard of.
  class NodeNames;
  // What comes of a target of PrepareTasks; new tasks go into the plan.
  TaskPlacement PlanTask(const TaskRequest& request, const TaskTarget& target, const NodeNames& names,
                         absl::Time now, TaskPlan& plan) const;
  // The group that the tasks of a plan make; nullopt: none. FAILED_PRECONDITION with the reason where it was
  // asked for and cannot be.
  absl::StatusOr<std::optional<GroupPlan>> PlanGroup(const TaskRequest& request, const TaskPlan& plan) const;
  // Why no GPU of this node can take part in a group that is to be made.
  absl::Status CheckMayBroadcast(std::string_view node_id) const;
  // A replica of the artifact that is ready on a GPU of a node that may take part; nullopt: there is none.
  std::optional<GroupPlan::Rank> FindReadyRoot(std::string_view artifact_id,
                                               const std::string& nccl_version) const;
  // Whether two of them failed together a while ago.
  bool FailedTogether(const std::set<std::string>& nodes) const;
  // The node goes: its groups are over.
  void LeaveGroups(std::string_view node_id);
  void ExpireGroups(SteadyTime now);
  // A ready one of the artifact there; null when there is none.
  const HeldReplica* FindReplicaAt(std::string_view artifact_id, const std::string& node_id,
                                   const Location& location) const;
  ArtifactView ViewOf(const ArtifactState& artifact) const;  // without its replicas
  // Those after `after`, into the room that is left of `bytes`, which it takes.
  void AddReplicas(ArtifactView& view, std::string_view after, size_t& bytes) const;
  NodeView ViewOf(const NodeState& node, SteadyTime now) const;

  // What the end of a grant says of its source.
  static void NoteServing(NodeState& source, GrantEnd end, SteadyTime now);
  void EndGrant(const std::string& grant_id, GrantEnd end);
  // Ends them without their receiver's word, and tells both ends with their heartbeats.
  void EndGrants(const std::vector<std::string>& grant_ids, GrantEnd end, SteadyTime now);
  // Some of those that may be a source for this request, in a number that does not grow with theirs.
  struct Candidates;
  Candidates FindCandidates(const GrantRequest& request, const NodeState& receiver, const SourceQuery& query,
                            SteadyTime now) const;
  // Whether a chain of grants, and of what nodes without grants were told to wait for, leads from this node
  // to one that can make the bytes without the receiver. So no chain of waits is closed.
  struct RootSearch {
    const NodeState* receiver = nullptr;
    SteadyTime now;
    absl::flat_hash_set<const NodeState*> rooted = {};  // found so far, for one receiver and moment
    absl::flat_hash_set<const NodeState*> seen = {};    // by this search
  };
  bool IsRooted(const NodeState& node, std::string_view artifact_id, RootSearch& search) const;
  bool LeadsOn(const NodeState& node, std::string_view artifact_id, RootSearch& search) const;
  static uint32_t UploadsOf(const NodeState& node, const std::string& artifact_id);
  OfferedGrant Give(const GrantRequest& request, NodeState& receiver, const SourceRef& source,
                    std::string lane, SteadyTime now);
  absl::Duration LookAgain(const GrantRequest& request, NodeState& receiver);
  OfferedGrant Granted(const Grant& grant, SteadyTime now) const;
  std::vector<Origin> LiveOrigins(const ArtifactState& artifact) const;
  static bool IsGone(const ArtifactState& artifact, const Origin& origin);
  // Whether the receiver of this request takes the bytes from an origin of its own, where it has one.
  static bool ReadsOwnFiles(const GrantRequest& request);
  // Whether the receiver is about to read files of its own node, which the offer names.
  static bool FillsItself(const ArtifactState& artifact, const GrantRequest& request,
                          const GrantOffer& offer);
  GrantOffer RefuseDraining(const ArtifactState& artifact, const GrantRequest& request, NodeState& receiver,
                            SteadyTime now);
  // waits.cc
  // Says in the offer what may become a source for this receiver, if anything may, and counts that its
  // replica was told to wait.
  void OfferToWait(const GrantRequest& request, NodeState& receiver, const SourceQuery& query,
                   size_t elsewhere, SteadyTime now, GrantOffer& offer);
  // A daemon of the receiver's host that has just been given sources on other hosts, so that the receiver
  // shall have none of its own there; nullopt: none has, or none is waited for any more.
  struct HostmatePulls {
    std::string name;
    absl::Duration retry_after;
  };
  std::optional<HostmatePulls> FindPullingHostmate(const GrantRequest& request, NodeState& receiver,
                                                   const SourceQuery& query, SteadyTime now);
  // Whether the node was given sources on other hosts a moment ago, for its host.
  bool HasTurn(const NodeState& node, std::string_view artifact_id, SteadyTime now) const;
  struct Filling {
    std::vector<std::string> names;  // of a few
    std::vector<std::string> nodes;  // their ids
    void Add(const NodeState& node, std::string_view does) {
      names.push_back(absl::StrCat("the replica that ", does, " at ", node.facts.name));
      nodes.push_back(node.facts.node_id);
    }
  };
  // Whether the node has a replica of it that fills.
  bool FillsAt(std::string_view artifact_id, std::string_view node_id) const;
  // Null: it was not told to wait, or does not wait any more.
  const Waiting* FindWaiting(std::string_view artifact_id, std::string_view node_id, SteadyTime now) const;
  // It does not wait any more, as far as is known.
  void EndWaiting(std::string_view artifact_id, std::string_view node_id);
  // Whether the node has it, or makes it from what it has, or is about to ask for it.
  bool HasOwnWay(std::string_view artifact_id, const NodeState& node, SteadyTime now) const;
  Filling FillingElsewhere(const GrantRequest& request, const NodeState& receiver, const SourceQuery& query,
                           SteadyTime now) const;
  void AddBeginning(const GrantRequest& request, const NodeState& receiver, const SourceQuery& query,
                    SteadyTime now, Filling& filling) const;
  // A ready replica on the host of that node; null when it has none.
  const HeldReplica* FindInMemory(std::string_view artifact_id, const NodeState& node) const;
  // Has an origin on another node read, where the receiver has none itself. Gives the nodes that are waited
  // for; none: there is nothing to wait for.
  std::vector<std::string> OfferOrigins(const GrantRequest& request, const NodeState& receiver,
                                        const SourceQuery& query, SteadyTime now, GrantOffer& offer);
  void NoteBeginning(const GrantRequest& request, SteadyTime now);
  void NoteReported(const std::string& node_id, const std::string& artifact_id);
  std::vector<std::string> NodesThatWillReport(const NodeState& receiver, SteadyTime now) const;
  std::vector<std::string> NodesAwayWith(std::string_view artifact_id, SteadyTime now) const;
  // Those that this receiver could be served by if they could be reached.
  std::vector<std::string> UnreachableNodesWith(const GrantRequest& request, const NodeState& receiver,
                                                const SourceQuery& query) const;
  // The receiver's own replica that the request is for; null before it was reported.
  HeldReplica* FindDestination(const GrantRequest& request, NodeState& receiver);
  void TellRevoked(const std::string& node_id, const std::string& grant_id, SteadyTime now);

  const DirectoryOptions options_;
  Secrets* const secrets_;

  absl::btree_map<std::string, ArtifactState> artifacts_;
  struct Tombstone {
    absl::Time deleted;
    bool versioned = false;  // it was released, not deleted by a person
  };
  absl::btree_map<std::string, Tombstone> tombstones_;  // by artifact id
  std::set<std::string, std::less<>> released_;         // artifact ids, see IsReleased
  absl::btree_map<std::string, KeyRecord> keys_;        // deleted ones too
  uint64_t live_keys_ = 0;
  absl::btree_map<std::string, std::string> names_of_nodes_;      // by node id: those that are bound
  absl::flat_hash_map<std::string, std::string> nodes_of_names_;  // the way back: a name has one node id

  absl::btree_map<std::string, HeldTask>
      tasks_;  // by place (TaskKeyOf), so those of an artifact are side by side
  absl::flat_hash_map<std::string, std::string> place_of_task_;  // by task id
  // Node id -> its open tasks in the order in which they are handed out: when each was made, and its place.
  absl::btree_map<std::string, std::set<std::pair<absl::Time, std::string>>> open_tasks_;
  std::set<std::string> tasks_to_settle_;                   // places of tasks with an ended attempt
  absl::btree_map<std::string, TaskChange> changed_tasks_;  // by place
  std::map<std::string, Group, std::less<>> groups_;        // by id
  std::vector<FailedGroup> failed_groups_;

  std::map<std::string, NodeState, std::less<>> nodes_;       // pointed at by the index of sources
  absl::flat_hash_map<std::string, std::string> live_names_;  // of nodes_: node id by name
  size_t largest_fleet_ = 0;                                  // of the time up to kFleetAge ago
  SteadyTime largest_fleet_until_ = SteadyTime::InfinitePast();
  absl::btree_map<std::string, AwayNode> away_;            // by node id
  SteadyTime awaited_until_ = SteadyTime::InfinitePast();  // nodes from before the start
  SteadyTime releases_from_ = SteadyTime::InfinitePast();  // before, no node may have said what it holds
  // Nodes that were just told where to fill a replica from, and that have yet to report it:
  // artifact id -> node id -> believed until.
  absl::flat_hash_map<std::string, std::map<std::string, SteadyTime>> beginning_;
  // Artifact id -> node id.
  absl::flat_hash_map<std::string, std::map<std::string, Waiting, std::less<>>> waiting_;
  absl::flat_hash_map<std::string, HolderSet> holders_;  // by artifact id
  uint64_t replicas_ = 0;                                // of all nodes
  std::vector<ReplicaName> accused_;                     // that TakeAccused has yet to give
  // Names of accusers -> names of the holders that refuted them.
  absl::btree_map<std::string, std::set<std::string>> refutations_;
  std::map<std::string, Grant, std::less<>> grants_;                       // pointed at by their nodes
  absl::flat_hash_map<std::string, SourcesOfScope> sources_;               // by scope, see ScopesOf
  absl::flat_hash_map<std::string, std::set<std::string>> nodes_of_host_;  // node ids by host id
  std::vector<EndedGrant> ended_;
};

}  // namespace tensorcast::global_store
