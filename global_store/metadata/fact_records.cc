#include "global_store/metadata/fact_records.h"

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "metadata/fact_records.pb.h"

namespace tensorcast::global_store {
namespace {

// A fact's name is its key in the store. The record is all the rest, so no name is written twice.
Fact ToFact(const ArtifactRecord& artifact) {
  record::Artifact message;
  message.set_image_bytes(artifact.image_bytes);
  message.set_chunk_bytes(artifact.chunk_bytes);
  message.set_tensor_count(artifact.tensor_count);
  message.set_created_ns(absl::ToUnixNanos(artifact.created));
  message.set_updated_ns(absl::ToUnixNanos(artifact.updated));
  message.set_deleted(artifact.deleted);
  message.set_versioned(artifact.versioned);
  message.set_kind(static_cast<uint32_t>(artifact.kind));
  message.set_tensors_digest(artifact.tensors_digest);
  message.set_base_id(artifact.base_id);
  message.set_target_id(artifact.target_id);
  for (const Origin& origin : artifact.origins) message.add_origins(EncodeOrigin(origin));
  // A deleted artifact stays as a tombstone for a while. By it a node that still holds a replica is told to
  // forget it, instead of publishing the artifact again.
  return {.kind = FactKind::kArtifact,
          .name = artifact.artifact_id,
          .record = message.SerializeAsString(),
          .ageing = !artifact.deleted    ? Ageing::kNever
                    : artifact.versioned ? Ageing::kVersionTombstone
                                         : Ageing::kTombstone,
          .updated = artifact.updated};
}

Fact ToFact(const KeyRecord& key) {
  record::Key message;
  message.set_artifact_id(key.artifact_id);
  message.set_revision(key.revision);
  message.set_updated_ns(absl::ToUnixNanos(key.updated));
  message.set_deleted(key.deleted);
  message.set_keep(key.keep);
  message.set_files_id(key.files_id);
  message.mutable_past()->Assign(key.past.begin(), key.past.end());
  for (const KeyVersion& version : key.earlier) {
    record::KeyVersion& added = *message.add_earlier();
    added.set_artifact_id(version.artifact_id);
    added.set_revision(version.revision);
    added.set_bound_ns(absl::ToUnixNanos(version.bound));
    added.set_files_id(version.files_id);
  }
  return {.kind = FactKind::kKey,
          .name = key.name,
          .record = message.SerializeAsString(),
          .ageing = key.deleted ? Ageing::kTombstone : Ageing::kNever,
          .updated = key.updated};
}

Fact ToFact(const NodeBinding& node) {
  record::Node message;
  message.set_name(node.name);
  // A binding without a name unbinds the node id, so the fact is dropped.
  return {.kind = FactKind::kNode,
          .name = node.node_id,
          .record = message.SerializeAsString(),
          .forgotten = node.name.empty()};
}

// Of artifact, node and location, which are its name, the record says nothing.
Fact ToFact(const TaskRecord& task) {
  record::ReplicationTask message;
  message.set_task_id(task.task_id);
  message.set_node_name(task.node_name);
  message.set_asked_by(task.asked_by);
  message.set_traceparent(task.traceparent);
  message.set_state(static_cast<uint32_t>(task.state));
  message.set_failures(task.failures);
  // Raw: a code of a newer version stays as it is.
  message.set_error_code(task.error.raw_code());
  message.set_error(std::string(task.error.message()));
  message.set_created_ns(absl::ToUnixNanos(task.created));
  message.set_updated_ns(absl::ToUnixNanos(task.updated));
  return {.kind = FactKind::kTask,
          .name = absl::StrCat(TaskPrefix(task.artifact_id), task.node_id, "/", task.location.ToString()),
          .record = message.SerializeAsString(),
          .ageing = task.state == TaskState::kOpen ? Ageing::kNever : Ageing::kEndedTask,
          .updated = task.updated,
          .forgotten = task.cancelled};
}

// A key and a node id may have any character; the length of the node id tells where the key begins.
Fact ToFact(const FollowerRecord& follower) {
  record::Follower message;
  message.set_node_name(follower.node_name);
  message.set_asked_by(follower.asked_by);
  message.set_created_ns(absl::ToUnixNanos(follower.created));
  return {.kind = FactKind::kFollower,
          .name = absl::StrCat(follower.location.ToString(), "/", follower.node_id.size(), "/",
                               follower.node_id, "/", follower.key),
          .record = message.SerializeAsString(),
          .forgotten = follower.removed};
}

// A group that announces nothing for as long as a tombstone lives is over: its members know what was
// announced.
Fact ToFact(const AnnouncementRecord& announcement) {
  record::Announcement message;
  message.set_revision(announcement.revision);
  message.set_artifact_id(announcement.artifact_id);
  message.mutable_members()->Assign(announcement.members.begin(), announcement.members.end());
  message.set_updated_ns(absl::ToUnixNanos(announcement.updated));
  return {.kind = FactKind::kAnnouncement,
          .name = absl::StrCat(announcement.group, "/", announcement.key),
          .record = message.SerializeAsString(),
          .ageing = Ageing::kTombstone,
          .updated = announcement.updated};
}

constexpr std::string_view kOtherRelease = "run the release that wrote the metadata";

// A start must not go on without a fact, so the caller is told which one cannot be read.
absl::Status Damaged(std::string_view kind, std::string_view name, std::string_view cause,
                     std::string_view remedy = "restore the metadata from a backup") {
  return absl::DataLossError(absl::StrCat("load ", kind, " ", name, ": ", cause, "; ", remedy));
}

constexpr std::string_view kUnreadable = "the record is damaged";

absl::Status AddArtifact(std::string_view name, const std::string& record, DurableFacts& facts) {
  record::Artifact message;
  if (!message.ParseFromString(record)) return Damaged("artifact", name, kUnreadable);
  // A newer version wrote a kind that this one does not know. To serve it as tensors would be wrong.
  if (message.kind() > static_cast<uint32_t>(ArtifactKind::kDifference)) {
    return Damaged("artifact", name, absl::StrCat("kind ", message.kind(), " is unknown"), kOtherRelease);
  }
  ArtifactRecord artifact{.artifact_id = std::string(name),
                          .kind = static_cast<ArtifactKind>(message.kind()),
                          .image_bytes = message.image_bytes(),
                          .chunk_bytes = message.chunk_bytes(),
                          .tensor_count = message.tensor_count(),
                          .tensors_digest = message.tensors_digest(),
                          .created = absl::FromUnixNanos(message.created_ns()),
                          .deleted = message.deleted(),
                          .updated = absl::FromUnixNanos(message.updated_ns()),
                          .versioned = message.versioned(),
                          .base_id = message.base_id(),
                          .target_id = message.target_id()};
  for (const std::string& bytes : message.origins()) {
    absl::StatusOr<Origin> origin = DecodeOrigin(bytes);
    if (!origin.ok()) return Damaged("artifact", name, origin.status().message());
    artifact.origins.push_back(*std::move(origin));
  }
  facts.artifacts.push_back(std::move(artifact));
  return absl::OkStatus();
}

absl::Status AddKey(std::string_view name, const std::string& record, DurableFacts& facts) {
  record::Key message;
  if (!message.ParseFromString(record)) return Damaged("key", name, kUnreadable);
  KeyRecord& key = facts.keys.emplace_back(KeyRecord{.name = std::string(name),
                                                     .artifact_id = message.artifact_id(),
                                                     .revision = message.revision(),
                                                     .updated = absl::FromUnixNanos(message.updated_ns()),
                                                     .deleted = message.deleted(),
                                                     .keep = message.keep(),
                                                     .earlier = {},
                                                     .files_id = message.files_id(),
                                                     .past = {message.past().begin(), message.past().end()}});
  for (const record::KeyVersion& version : message.earlier()) {
    key.earlier.push_back({.artifact_id = version.artifact_id(),
                           .revision = version.revision(),
                           .bound = absl::FromUnixNanos(version.bound_ns()),
                           .files_id = version.files_id()});
  }
  return absl::OkStatus();
}

absl::Status AddTask(std::string_view name, const std::string& record, DurableFacts& facts) {
  record::ReplicationTask message;
  if (!message.ParseFromString(record)) return Damaged("task", name, kUnreadable);
  // A node chose its id, which may have a '/'; the other two have none.
  const size_t first = name.find('/');
  const size_t last = name.rfind('/');
  if (first == last) return Damaged("task", name, "the name does not have three parts");
  const absl::StatusOr<Location> location = Location::Parse(name.substr(last + 1));
  if (!location.ok()) return Damaged("task", name, location.status().message());
  if (message.state() > static_cast<uint32_t>(TaskState::kFailed)) {
    return Damaged("task", name, absl::StrCat("state ", message.state(), " is unknown"), kOtherRelease);
  }
  facts.tasks.push_back(
      {.task_id = message.task_id(),
       .artifact_id = std::string(name.substr(0, first)),
       .node_id = std::string(name.substr(first + 1, last - first - 1)),
       .location = *location,
       .node_name = message.node_name(),
       .asked_by = message.asked_by(),
       .traceparent = message.traceparent(),
       .state = static_cast<TaskState>(message.state()),
       .failures = message.failures(),
       .error = absl::Status(static_cast<absl::StatusCode>(message.error_code()), message.error()),
       .created = absl::FromUnixNanos(message.created_ns()),
       .updated = absl::FromUnixNanos(message.updated_ns())});
  return absl::OkStatus();
}

absl::Status AddFollower(std::string_view name, const std::string& record, DurableFacts& facts) {
  record::Follower message;
  if (!message.ParseFromString(record)) return Damaged("follower", name, kUnreadable);
  const std::vector<std::string_view> parts = absl::StrSplit(name, absl::MaxSplits('/', 2));
  size_t length = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &length) || length >= parts[2].size() ||
      parts[2][length] != '/') {
    return Damaged("follower", name, "the name is not LOCATION/LENGTH/NODE/KEY");
  }
  const absl::StatusOr<Location> location = Location::Parse(parts[0]);
  if (!location.ok()) return Damaged("follower", name, location.status().message());
  facts.followers.push_back({.key = std::string(parts[2].substr(length + 1)),
                             .node_id = std::string(parts[2].substr(0, length)),
                             .location = *location,
                             .node_name = message.node_name(),
                             .asked_by = message.asked_by(),
                             .created = absl::FromUnixNanos(message.created_ns())});
  return absl::OkStatus();
}

absl::Status AddAnnouncement(std::string_view name, const std::string& record, DurableFacts& facts) {
  record::Announcement message;
  if (!message.ParseFromString(record)) return Damaged("announcement", name, kUnreadable);
  const size_t slash = name.find('/');  // the name of a group has none
  if (slash == std::string_view::npos) return Damaged("announcement", name, "the name is not GROUP/KEY");
  facts.announcements.push_back({.key = std::string(name.substr(slash + 1)),
                                 .group = std::string(name.substr(0, slash)),
                                 .revision = message.revision(),
                                 .artifact_id = message.artifact_id(),
                                 .members = {message.members().begin(), message.members().end()},
                                 .updated = absl::FromUnixNanos(message.updated_ns())});
  return absl::OkStatus();
}

}  // namespace

absl::Time LimitOf(Ageing ageing, const PurgeTimes& before) {
  switch (ageing) {
    case Ageing::kNever:
      break;
    case Ageing::kTombstone:
      return before.tombstones;
    case Ageing::kVersionTombstone:
      return before.versions;
    case Ageing::kEndedTask:
      return before.tasks;
  }
  return absl::InfinitePast();
}

// The '/' ends the id, so that the tasks of one artifact are one range of names.
std::string TaskPrefix(std::string_view artifact_id) { return absl::StrCat(artifact_id, "/"); }

// The records come in the order of their kinds: a fact that names an artifact comes after it (CopyMetadata
// relies on this).
std::vector<Fact> Encode(const DurableFacts& facts) {
  std::vector<Fact> all;
  const auto add = [&all](const auto& records) {
    for (const auto& record : records) all.push_back(ToFact(record));
  };
  add(facts.artifacts);
  add(facts.keys);
  add(facts.nodes);
  add(facts.tasks);
  if (!facts.cluster_id.empty()) all.push_back({.kind = FactKind::kCluster, .name = facts.cluster_id});
  add(facts.followers);
  add(facts.announcements);
  return all;
}

absl::Status Decode(FactKind kind, std::string_view name, const std::string& record, DurableFacts& facts) {
  switch (kind) {
    case FactKind::kArtifact:
      return AddArtifact(name, record, facts);
    case FactKind::kKey:
      return AddKey(name, record, facts);
    case FactKind::kNode: {
      record::Node message;
      if (!message.ParseFromString(record)) return Damaged("node", name, kUnreadable);
      facts.nodes.push_back({.node_id = std::string(name), .name = message.name()});
      return absl::OkStatus();
    }
    case FactKind::kTask:
      return AddTask(name, record, facts);
    case FactKind::kCluster:
      facts.cluster_id = name;
      return absl::OkStatus();
    case FactKind::kFollower:
      return AddFollower(name, record, facts);
    case FactKind::kAnnouncement:
      return AddAnnouncement(name, record, facts);
  }
  return Damaged("fact", name, absl::StrCat("kind ", static_cast<int>(kind), " is unknown"), kOtherRelease);
}

absl::Status NoManifest(std::string_view artifact_id) {
  return absl::NotFoundError(
      absl::StrCat("read the manifest of ", artifact_id,
                   ": the metadata store does not have the manifest; publish the artifact first"));
}

}  // namespace tensorcast::global_store
