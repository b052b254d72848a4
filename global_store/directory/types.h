// What the directory is told and what it answers. Plain values; the service converts them to and from
// protobuf.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "base/labels.h"
#include "base/steady_time.h"
#include "core/replica/replica.h"
#include "global_store/catalog/facts.h"
#include "global_store/membership/liveness.h"

namespace tensorcast::global_store {

struct NodeIdentity {
  std::string node_id;
  uint64_t incarnation = 0;
};

struct DeviceFacts {
  int ordinal = 0;
  std::string uuid;
  std::string name;
  uint64_t total_bytes = 0;
};

struct PoolFacts {
  Location location;
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t pinned_bytes = 0;
  uint64_t high_water_bytes = 0;
  uint64_t failed_allocations = 0;
  uint64_t evictions = 0;
  uint32_t partial_replicas = 0;
  uint64_t partial_bytes = 0;
};

// Whether a node's GPUs take part in broadcasts between nodes: it says so with its heartbeats.
struct BroadcastAbility {
  std::string nccl_version;  // with which; empty: they do not
  std::string why_not;       // then, for people
};

// As a node registers itself; what may change since, it says with its heartbeats.
struct NodeFacts {
  std::string node_id;
  std::string name;
  uint64_t incarnation = 0;
  std::string host_id;
  std::string grpc_address;
  std::string handle_socket;  // empty: other daemons of the host cannot attach, so no local lane
  std::vector<std::string> lanes;
  std::vector<std::string> device_lanes = {};  // those of them that reach its GPUs' memory
  std::vector<DeviceFacts> devices;
  Labels labels;
  uint32_t protocol_version = 0;  // as it says; calls of another than ours are refused before they come here
  BroadcastAbility broadcasts = {};
  std::vector<int> unhealthy_devices = {};  // by ordinal
};

struct NodeView {
  NodeFacts facts;
  bool draining = false;
  bool unreachable = false;
  std::vector<PoolFacts> pools;
  absl::Duration since_heartbeat;
};

struct ArtifactView {
  ArtifactRecord record;
  std::vector<std::string> keys;
  std::vector<std::string> kept_by;  // keys of which it is an earlier version that is kept
  bool released = false;        // it goes when room is needed: no key names or keeps this version any more
  uint64_t ready_replicas = 0;  // that serve and count as copies, whether listed or not
  std::vector<ReplicaInfo> replicas;
  std::string
      more_replicas_after;  // where a page that had no room for all of them goes on; empty: these are all
};

// How much one page of a listing has at most: of each there is at least one entry on it.
struct PageBounds {
  size_t entries = SIZE_MAX;
  size_t bytes = SIZE_MAX;  // as messages, by estimate; not less than they turn out to be
};

// `next` is where the listing goes on; empty: this is the last page.
struct ArtifactPage {
  std::vector<ArtifactView> artifacts;
  std::string next;
};
struct NodePage {
  std::vector<NodeView> nodes;
  std::string next;
};

struct Registration {
  std::string grant_key;
  absl::Duration grant_key_age;
  Liveness liveness;
};

struct HeartbeatReply {
  bool inventory_wanted = false;
  std::vector<std::string> revoked_grants;
  std::vector<std::string> forgotten_artifacts;
  std::vector<std::string> evict_replicas;
  absl::Duration grant_key_age;
  Liveness liveness;
};

// Which artifacts are listed: those for which all of it holds.
struct ArtifactFilter {
  bool unkeyed_only = false;  // no key names or keeps them
  absl::Time created_before = absl::InfiniteFuture();
  std::string_view origin_path;  // imported from a file of this path, on any node; empty: from anywhere
  bool replicas = false;         // are listed; else they are only counted
};

// An origin and where its node is asked about it.
struct OriginToCheck {
  std::string artifact_id;
  Origin origin;
  std::string grpc_address;
};

// What came of looking at an origin's files.
enum class OriginFinding : uint8_t {
  kIntact,     // each can be read and has the identity that it was imported with
  kComparing,  // as kIntact, and its node reads them to compare their digests; the reason says how far it is
  kGone,       // one at least cannot or has not: nothing can be made of it any more
  kUnclear,    // its node could not tell just now
  kSilent,     // its node did not answer
};

// A replica by its node: ids are unique within a node only.
struct ReplicaName {
  std::string node_id;
  std::string replica_id;
  friend auto operator<=>(const ReplicaName&, const ReplicaName&) = default;
};

// A replica, or files, that count as a copy once their node has proven that it has the bytes; and where its
// node is asked.
struct CopyToProve {
  ReplicaName replica;  // without a replica's id: the files that its node imported
  std::string node_name;
  std::string grpc_address;
  std::optional<Origin> origin = {};  // then
};

// The copies of one artifact, one of which is enough.
struct CopiesToProve {
  std::string artifact_id;
  uint64_t image_bytes = 0;
  CopyToProve evicting;  // the replica that is to go: its answer is what the others are compared with
  std::vector<CopyToProve> copies;
};

// What came of asking for them.
struct Proofs {
  std::vector<ReplicaName> proven;
  std::vector<ReplicaName> unproven;  // no answer, or a wrong one
};

struct EvictionDecision {
  bool granted = false;
  std::string reason = {};
  // When refused: it would be granted if one of these copies were proven. Ask again with what was found.
  CopiesToProve to_prove = {};
  // When refused: what has to end before it can be granted, for people. Empty: nothing is under way.
  std::string waiting_for = {};
  // When refused: it would be granted if one of these turned out to be intact. Look at them, note what was
  // found (Directory::NoteOrigin), and ask again.
  std::vector<OriginToCheck> unchecked_origins = {};
  // When refused: it is the last copy of a version that no key keeps. It would be granted once that artifact
  // is deleted: commit Directory::PrepareReleaseOf, and ask again.
  bool release_first = false;
};

struct PublishRequest {
  NodeIdentity node;
  ArtifactRecord artifact;  // id, sizes and counts; the rest is filled in
  std::optional<ReplicaInfo> replica;
  std::optional<Origin> origin;
  std::string key;  // empty: none is bound
  std::optional<uint64_t> expected_revision;
  std::optional<uint32_t> keep;  // as BindRequest::keep
};

struct BindRequest {
  std::string key;
  std::string artifact_id;
  std::optional<uint64_t> expected;  // compare-and-swap on the revision; 0: the key must not exist
  std::optional<uint32_t> keep;      // versions to keep from now on; unset: as before
};

// What a change of durable facts would be. Commit `facts`, then Apply them.
struct PublishPlan {
  DurableFacts facts;  // may be empty: all of it is known
  bool existed = false;
  uint64_t key_revision = 0;
};

struct KeyPlan {
  DurableFacts facts;
  KeyRecord key;
};

struct GrantRequest {
  NodeIdentity receiver;
  std::string artifact_id;
  Location destination;
  std::vector<std::string> excluded_replicas;
  std::vector<std::string> corrupt_replicas;
  // Given up before, or held and giving nothing just now: offered when nothing else is left.
  std::vector<std::string> slow_replicas;
  absl::Duration timeout;  // how long the receiver expects to take at most; zero: unknown
  std::string required_lane;
  uint32_t sources = 1;  // grants that are wanted, at most
  // Grants that this transfer has: their replicas are not offered to it once more.
  std::vector<std::string> held_grants;
};

struct Grant {
  std::string grant_id;
  std::string artifact_id;
  std::string replica_id;
  std::string source_node;
  std::string receiver_node;
  Location destination;
  std::string lane;
  SteadyTime issued;
  SteadyTime expires;            // moved on by the receiver's heartbeats
  absl::Duration token_expires;  // to open the pull by, since the source's key was given; fixed
  uint32_t share = 0;            // among the replica's grants when it was issued: the lowest that was free
};

// A fresh grant with what its holder needs to use it.
struct OfferedGrant {
  Grant grant;
  NodeView source;
  ReplicaInfo replica;
  std::string source_key;  // signs the token
  absl::Duration ttl;
  // Which of the replica's receivers this one is, so that each can ask it for other chunks first.
  uint32_t share = 0;
  uint32_t shares = 1;
};

struct GrantOffer {
  std::vector<OfferedGrant> granted;  // of different replicas, the best first
  // From now: when the transfer should ask for more sources, as fewer than it wants were there.
  absl::Duration look_again = absl::InfiniteDuration();
  std::string no_source_reason;  // when not granted
  std::vector<Origin> origins;   // on live nodes
  // When not granted: what may become a source, for people. Asking again is worth while after `retry_after`;
  // where that is zero, the time is not known.
  std::vector<std::string> waiting_for;
  absl::Duration retry_after;
  // When not granted, at most one of these. The first: only the files of an import can give the bytes;
  // have their node make a replica of them and say how that went (Directory::NoteReading). The second: so it
  // may be, or the receiver's own files can; look at those (Directory::NoteOrigin) and ask again.
  std::optional<OriginToCheck> origin_to_read;
  std::optional<OriginToCheck> origin_to_check;
};

// How a grant ended; each ends exactly once.
enum class GrantEnd : uint8_t { kSucceeded, kFailed, kCancelled, kOvertaken, kExpired, kRevoked };
std::string_view GrantEndName(GrantEnd end);

struct EndedGrant {
  Grant grant;
  GrantEnd end = GrantEnd::kExpired;
};

struct TaskTarget {
  std::string node;  // its id, or its name
  Location location;
};

// Whether GPUs get theirs by a broadcast: where that is expected to be faster, in any case,
// or never.
enum class TaskLane : uint8_t { kAuto, kNccl, kPull };

struct TaskRequest {
  std::string request_id;  // of its own: the tasks are named after it
  std::string artifact_id;
  std::vector<TaskTarget> targets;
  std::string asked_by;
  std::string traceparent;
  TaskLane lane = TaskLane::kAuto;
};

enum class TaskProgress : uint8_t { kWaiting, kRunning, kDone, kFailed };

// A task and how it stands. What its node said of it counts here from that moment on, though it be not
// durable yet.
struct TaskView {
  TaskRecord record;
  TaskProgress progress = TaskProgress::kWaiting;
  std::string waiting_for;  // for people, while it waits
  uint64_t bytes = 0;       // in their places, while it runs
  uint64_t bytes_total = 0;
};

// What a task is by now, or was when it went.
struct TaskChange {
  TaskView task;
  bool gone = false;
};

// What comes of one target of a request: an error, a replica that is there already, or a task.
struct TaskPlacement {
  std::string node_id;
  absl::Status error;
  std::string replica_id;
  std::optional<TaskView> task;
};

// A group to be: GPUs of several nodes, to all of which an artifact is broadcast from one of them.
struct GroupPlan {
  struct Rank {
    std::string node_id;
    Location location;
  };
  std::string group_id;
  std::string artifact_id;
  std::vector<Rank> ranks;            // by rank; those of a node follow each other
  std::string root_node;              // which has the root among its ranks
  std::vector<std::string> task_ids;  // that it fulfils
};

struct TaskPlan {
  DurableFacts facts;
  std::vector<TaskPlacement> places;  // one a target, in their order
  std::optional<GroupPlan> group;     // to be added once the facts are applied
};

// A group as one of its nodes is told of it while it forms.
struct NodeGroup {
  struct Rank {
    uint32_t rank = 0;
    Location location;
  };
  std::string group_id;
  std::string artifact_id;
  uint32_t world_size = 0;
  std::vector<Rank> ranks;  // of the node
  bool has_root = false;
  absl::Duration forming;  // left
};

// What a group's root brings for all.
struct GroupRoot {
  std::string communicator_id;
  uint32_t rank = 0;
  std::string node_name;
  std::string replica_id;
  std::string traceparent;
};

struct CancelPlan {
  DurableFacts facts;
  std::vector<TaskView> tasks;  // as they were
};

// What a node says of a task that it works on.
struct TaskReport {
  std::string task_id;
  uint64_t bytes = 0;
  uint64_t bytes_total = 0;
  std::optional<absl::Status> ended;  // this attempt
};

struct DirectoryCounts {
  uint64_t nodes = 0;
  uint64_t artifacts = 0;
  uint64_t keys = 0;
  uint64_t replicas = 0;
  uint64_t active_grants = 0;
  uint64_t open_tasks = 0;
};

}  // namespace tensorcast::global_store
