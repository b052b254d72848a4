// Durable facts: the content of the metadata store, from which the directory is rebuilt after a restart.
// Plain values.
//
// A deletion is a fact too. A deleted artifact leaves a tombstone, so that a node which was away meanwhile
// drops its copy instead of publishing it again. A deleted key keeps its revision, so that a compare-and-swap
// cannot mistake a new binding for an old one. Both are purged after kTombstoneAge.
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

// A training loop leaves a tombstone per step. To keep the metadata small, tombstones of versions live only
// as long as an absent node is remembered, and only the newest kMaxVersionTombstones are kept.
inline constexpr absl::Duration kVersionTombstoneAge = absl::Hours(24);
inline constexpr size_t kMaxVersionTombstones = 1024;

// The place of an origin. For files, it is the node. For shared objects, it is the first URI, whichever node
// imported them. An artifact has at most one origin per place.
std::string_view PlaceOf(const Origin& origin);
// Whether two origins of an artifact have the same place and the same objects: then a finding about one holds
// for the other.
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
  // Whether the artifact is a version of keys: once no key names or keeps it, it may be deleted with its last
  // replica. False for an artifact that was put without a key, or that lost its last key by deletion: it
  // stays. Files are always versions, since only keys name them.
  bool versioned = false;
  // For kind kDifference: its base and target (differences.h). A difference is always a version, as files
  // are.
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
  uint32_t keep = 0;  // versions to keep, from the last put that gave a number; 0: no put gave one
  std::vector<KeyVersion> earlier = {};  // still kept, newest first; all of different artifacts
  std::string files_id = {};  // the artifact of kind files that is bound with the tensors; empty: none
  // Ids of the versions before `earlier`, newest first. The key no longer keeps these versions, and the
  // artifacts may be gone, but differences between them may still be kept.
  std::vector<std::string> past = {};
  friend bool operator==(const KeyRecord&, const KeyRecord&) = default;
};

// The owner of a node id, if nodes have certificates: the name in the owner's certificate.
struct NodeBinding {
  std::string node_id;
  std::string name;  // empty: the id has no owner now, so the fact is deleted
  friend bool operator==(const NodeBinding&, const NodeBinding&) = default;
};

enum class TaskState : uint8_t { kOpen, kDone, kFailed };

// A task to make an artifact's replica at a place. A task makes the replica once: if the replica is evicted
// later, it is not made again. There is at most one task per artifact, node and location. The task names the
// artifact, so a later binding of the key does not change it.
struct TaskRecord {
  std::string task_id;  // new each time that the task is requested again, so that reports on an earlier
                        // task do not apply to this task
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
  bool cancelled = false;  // so the fact is deleted
  // The key of the follower that made the task. Such a task is not durable: the store derives it from the key
  // and its followers.
  std::string follows = {};
  friend bool operator==(const TaskRecord&, const TaskRecord&) = default;
};

// Ended tasks are shown for this long.
inline constexpr absl::Duration kTaskAge = absl::Hours(24);

// A follower: a place that is kept at the newest version of a key. There is at most one per key, node and
// location. It stays until it is removed or its node is forgotten; the key may be bound later.
struct FollowerRecord {
  std::string key;
  std::string node_id;
  Location location;
  std::string node_name;  // for people, while the node is away
  std::string asked_by;   // see TaskRecord::asked_by
  absl::Time created;
  bool removed = false;  // so the fact is deleted
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
  // A UUID, made with the metadata and never changed; archived objects have it in their names. Empty: no
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
