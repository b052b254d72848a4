// Durable facts: the content of the metadata store. After a restart, the directory is rebuilt from them.
// Plain values.
//
// A deleted artifact leaves a tombstone: a node that returns drops its copy and does not publish the artifact
// again. A deleted key keeps its revision: a compare-and-swap cannot mistake a new binding for an old
// binding. Tombstones and deleted keys are purged after kTombstoneAge.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/artifact/manifest.h"
#include "core/artifact/origin.h"
#include "core/replica/replica.h"

namespace tensorcast::global_store {

inline constexpr absl::Duration kTombstoneAge = absl::Hours(30 * 24);

// Tombstones of released versions are purged earlier, because a training loop leaves a tombstone per step.
// Only the newest kMaxVersionTombstones are kept.
inline constexpr absl::Duration kVersionTombstoneAge = absl::Hours(24);
inline constexpr size_t kMaxVersionTombstones = 1024;

// The place of an origin: the node id for files, the first URI for shared objects. An artifact has at most
// one origin per place.
std::string_view PlaceOf(const Origin& origin);
// Whether two origins have the same place and the same objects. Then a finding about one origin holds for
// both.
bool SameFiles(const Origin& a, const Origin& b);

struct ArtifactRecord {
  std::string artifact_id;
  ArtifactKind kind = ArtifactKind::kTensors;
  uint64_t image_bytes = 0;
  uint64_t chunk_bytes = 0;
  uint32_t tensor_count = 0;
  std::string tensors_digest;  // Manifest::DigestOfTensors
  absl::Time created;
  std::vector<Origin> origins;  // sorted by place
  bool deleted = false;         // a tombstone: only artifact_id, `updated` and `versioned` are meaningful
  absl::Time updated;
  // True: the artifact is a version of keys. After the last key has stopped to name or keep the artifact, it
  // may be deleted with its last replica. False: the artifact was put without a key, or its last key was
  // deleted. It stays until an operator deletes it. Files and differences are always versions.
  bool versioned = false;
  // For kind kDifference: the ids of its base and target (differences.h).
  std::string base_id = {};
  std::string target_id = {};
  friend bool operator==(const ArtifactRecord&, const ArtifactRecord&) = default;
};

// A previous binding of a key, replaced by a later one.
struct KeyVersion {
  std::string artifact_id;
  uint64_t revision = 0;
  absl::Time bound;
  std::string files_id = {};  // see KeyRecord::files_id
  friend bool operator==(const KeyVersion&, const KeyVersion&) = default;
};

struct KeyRecord {
  std::string name;
  std::string artifact_id;
  uint64_t revision = 0;  // 1 at the first bind
  absl::Time updated;
  bool deleted = false;
  uint32_t keep = 0;  // number of versions to keep, from the last put with a number; 0: no put gave one
  std::vector<KeyVersion> earlier = {};  // kept versions, newest first; no artifact twice
  std::string files_id = {};  // the artifact of kind files that is bound with the tensors; empty: none
  // Artifact ids of the versions before `earlier`, newest first. The key does not keep them, and they may be
  // deleted. Differences between them may be kept.
  std::vector<std::string> past = {};
  friend bool operator==(const KeyRecord&, const KeyRecord&) = default;
};

// The certificate name that owns a node id.
struct NodeBinding {
  std::string node_id;
  std::string name;  // empty: the id has no owner; the fact is deleted
  friend bool operator==(const NodeBinding&, const NodeBinding&) = default;
};

enum class TaskState : uint8_t { kOpen, kDone, kFailed };

// A task to make a replica of an artifact at a place: a location of a node. The replica is made once: a
// replica that is evicted later is not made again. There is at most one task per artifact, node and location.
// A later binding of a key does not change the task.
struct TaskRecord {
  std::string task_id;  // new each time that the task is requested again: reports with an earlier id
                        // do not apply
  std::string artifact_id;
  std::string node_id;
  Location location;
  std::string node_name;    // for people, while the node is away
  std::string asked_by;     // the requester, for the node's log (rpc::Caller::asking); empty: not known
  std::string traceparent;  // of the call that made the task
  TaskState state = TaskState::kOpen;
  uint32_t failures = 0;  // attempts that failed
  absl::Status error;     // of the last failed attempt
  absl::Time created;
  absl::Time updated;
  bool cancelled = false;  // true: the fact is deleted
  // The key of the follower that made the task; empty: none. Such a task is not durable: the store derives it
  // from the key and its followers.
  std::string follows = {};
  friend bool operator==(const TaskRecord&, const TaskRecord&) = default;
};

// How long an ended task is kept.
inline constexpr absl::Duration kTaskAge = absl::Hours(24);

// A follower: a place that the store keeps at the newest version of a key. There is at most one follower per
// key, node and location. A follower stays until it is removed or its node is forgotten. The key may be bound
// later.
struct FollowerRecord {
  std::string key;
  std::string node_id;
  Location location;
  std::string node_name;  // for people, while the node is away
  std::string asked_by;   // see TaskRecord::asked_by
  absl::Time created;
  bool removed = false;  // true: the fact is deleted
  friend bool operator==(const FollowerRecord&, const FollowerRecord&) = default;
};

// The newest version that a version group has announced. The revision never decreases.
struct AnnouncementRecord {
  std::string key;
  std::string group;
  uint64_t revision = 0;
  std::string artifact_id;
  std::vector<std::string> members;  // names of the members that had prepared the version
  absl::Time updated;
  friend bool operator==(const AnnouncementRecord&, const AnnouncementRecord&) = default;
};

// New values of facts, written together and then applied together.
struct DurableFacts {
  std::vector<ArtifactRecord> artifacts;
  std::vector<KeyRecord> keys;
  std::vector<NodeBinding> nodes;
  std::vector<TaskRecord> tasks;
  // A UUID that is made with the metadata and never changes. Names of archived objects contain it. Empty: no
  // change.
  std::string cluster_id = {};
  std::vector<FollowerRecord> followers = {};
  std::vector<AnnouncementRecord> announcements = {};
  bool empty() const {
    return artifacts.empty() && keys.empty() && nodes.empty() && tasks.empty() && cluster_id.empty() &&
           followers.empty() && announcements.empty();
  }
};

}  // namespace tensorcast::global_store
