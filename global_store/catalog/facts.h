// Durable facts: what the metadata store keeps, and what the directory is rebuilt from after a restart. Plain
// values.
//
// A deletion is a fact too. A deleted artifact leaves a tombstone, so that a node which was away meanwhile is
// told to drop its copy instead of publishing it again; a deleted key keeps its revision, so that a
// compare-and-swap cannot mistake a new binding for an old one. Both are purged after kTombstoneAge.
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

// A training loop leaves a tombstone a step. Those of versions live as long as an absent node is remembered,
// and the newest so many of them at most, so that the metadata does not grow with the number of steps.
inline constexpr absl::Duration kVersionTombstoneAge = absl::Hours(24);
inline constexpr size_t kMaxVersionTombstones = 1024;

// What an artifact has one origin for at most: the node that files are of; of shared objects the first URI,
// whichever nodes imported them.
std::string_view PlaceOf(const Origin& origin);
// Whether two origins of an artifact are of one place, and the same objects as they were then; what was found
// of one is true of the other.
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
  bool deleted = false;  // a tombstone: only artifact_id, `updated` and `versioned` still mean something
  absl::Time updated;
  // It is a version of keys: once no key names or keeps it, it may go with its last replica. False for an
  // artifact that was put without a key, or lost its last key by deletion: that one stays. Files are always
  // versions: only keys name them.
  bool versioned = false;
  // Of kind kDifference: what it makes, and from what (differences.h). Always a version, as files are.
  std::string base_id = {};
  std::string target_id = {};
  friend bool operator==(const ArtifactRecord&, const ArtifactRecord&) = default;
};

// A binding that a later one took the place of.
struct KeyVersion {
  std::string artifact_id;
  uint64_t revision = 0;
  absl::Time bound;
  std::string files_id = {};  // as KeyRecord::files_id
  friend bool operator==(const KeyVersion&, const KeyVersion&) = default;
};

struct KeyRecord {
  std::string name;
  std::string artifact_id;
  uint64_t revision = 0;  // 1 at the first bind
  absl::Time updated;
  bool deleted = false;
  uint32_t keep = 0;  // versions to keep, as the last put that gave a number asked; 0: no put gave one
  std::vector<KeyVersion> earlier = {};  // still kept, the newest first; each of another artifact
  std::string files_id = {};  // the artifact of kind files that is bound with the tensors; empty: none
  // Versions before those of `earlier`, the newest first: they are kept no longer, but differences between
  // them may be. Only their ids, of artifacts that may be gone.
  std::vector<std::string> past = {};
  friend bool operator==(const KeyRecord&, const KeyRecord&) = default;
};

// The owner of a node id, where nodes have certificates: the node with this name in its certificate.
struct NodeBinding {
  std::string node_id;
  std::string name;  // empty: no owner any more, and the fact is forgotten
  friend bool operator==(const NodeBinding&, const NodeBinding&) = default;
};

enum class TaskState : uint8_t { kOpen, kDone, kFailed };

// That an artifact be at a place: requested once, not for ever, so that what is evicted later stays away.
// There is at most one of an artifact, a node and a location; it names the artifact, whatever a key means
// later.
struct TaskRecord {
  std::string task_id;  // another each time that the same is requested again: what is said of an earlier one
                        // is not taken for this one
  std::string artifact_id;
  std::string node_id;
  Location location;
  std::string node_name;    // for people, while the node is away
  std::string asked_by;     // for the node's log: as rpc::Caller::asking; empty: not known
  std::string traceparent;  // of the call that made it
  TaskState state = TaskState::kOpen;
  uint32_t failures = 0;  // attempts that failed
  absl::Status error;     // of the last of those
  absl::Time created;
  absl::Time updated;
  bool cancelled = false;  // the fact is forgotten
  // The key of the follower that made it. Such a task is not durable: it follows from the key and its
  // followers.
  std::string follows = {};
  friend bool operator==(const TaskRecord&, const TaskRecord&) = default;
};

// Ended ones are shown for so long.
inline constexpr absl::Duration kTaskAge = absl::Hours(24);

// That a place be kept at the newest version of a key. There is at most one of a key, a node and a location.
// It stays until it is removed or its node is forgotten; the key may be bound later.
struct FollowerRecord {
  std::string key;
  std::string node_id;
  Location location;
  std::string node_name;  // for people, while the node is away
  std::string asked_by;   // as TaskRecord::asked_by
  absl::Time created;
  bool removed = false;  // the fact is forgotten
  friend bool operator==(const FollowerRecord&, const FollowerRecord&) = default;
};

// The newest version that a version group has announced. The revision never becomes smaller.
struct AnnouncementRecord {
  std::string key;
  std::string group;
  uint64_t revision = 0;
  std::string artifact_id;
  std::vector<std::string> members;  // by name: those that had prepared it
  absl::Time updated;
  friend bool operator==(const AnnouncementRecord&, const AnnouncementRecord&) = default;
};

// New values of some facts: written together, then applied together.
struct DurableFacts {
  std::vector<ArtifactRecord> artifacts;
  std::vector<KeyRecord> keys;
  std::vector<NodeBinding> nodes;
  std::vector<TaskRecord> tasks;
  // A UUID, made with the metadata and never changed: objects in archives are named by it. Empty: no change.
  std::string cluster_id = {};
  std::vector<FollowerRecord> followers = {};
  std::vector<AnnouncementRecord> announcements = {};
  bool empty() const {
    return artifacts.empty() && keys.empty() && nodes.empty() && tasks.empty() && cluster_id.empty() &&
           followers.empty() && announcements.empty();
  }
};

}  // namespace tensorcast::global_store
