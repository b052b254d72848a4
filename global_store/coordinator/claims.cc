#include "global_store/coordinator/claims.h"

#include <algorithm>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "global_store/tasks/task.h"

namespace tensorcast::global_store {
namespace {

std::string ArtifactName(const std::string& id) { return absl::StrCat("artifact ", id); }
std::string NodeName(const std::string& id) { return absl::StrCat("node ", id); }

}  // namespace

// A change claims what it writes, alone, and shares what it relies on: a key's artifact must not be deleted
// while the key is bound to it. What it writes it need not share.
ClaimedNames NamesOf(const DurableFacts& facts, const std::vector<std::string>& artifacts) {
  ClaimedNames names;
  for (const ArtifactRecord& record : facts.artifacts) {
    names.writes.insert(ArtifactName(record.artifact_id));
    // A difference goes with either of its ends.
    if (record.base_id.empty()) continue;
    names.reads.insert(ArtifactName(record.base_id));
    names.reads.insert(ArtifactName(record.target_id));
  }
  for (const KeyRecord& record : facts.keys) {
    names.writes.insert(absl::StrCat("key ", record.name));
    // An artifact that loses its last key by a deletion stays: so two deletions must see each other.
    (record.deleted ? names.writes : names.reads).insert(ArtifactName(record.artifact_id));
    if (!record.files_id.empty()) names.reads.insert(ArtifactName(record.files_id));
  }
  for (const NodeBinding& binding : facts.nodes) {
    names.writes.insert(NodeName(binding.node_id));
    names.writes.insert(absl::StrCat("name ", binding.name));
  }
  for (const TaskRecord& record : facts.tasks) {
    names.writes.insert(absl::StrCat("task ", TaskKeyOf(record)));
    names.reads.insert(ArtifactName(record.artifact_id));
    names.reads.insert(NodeName(record.node_id));
  }
  for (const FollowerRecord& record : facts.followers) {
    names.writes.insert(
        absl::StrCat("follower ", record.key, "\n", record.node_id, "\n", record.location.ToString()));
    names.reads.insert(NodeName(record.node_id));
  }
  for (const AnnouncementRecord& record : facts.announcements) {
    names.writes.insert(absl::StrCat("announcement ", record.group, "/", record.key));
  }
  for (const std::string& artifact : artifacts) names.reads.insert(ArtifactName(artifact));
  std::erase_if(names.reads, [&](const std::string& name) { return names.writes.contains(name); });
  return names;
}

bool Claims::AreFree(const ClaimedNames& names) const {
  return std::ranges::none_of(names.writes, [&](const auto& name) { return holders_.contains(name); }) &&
         std::ranges::none_of(names.reads, [&](const auto& name) {
           const auto held = holders_.find(name);
           return held != holders_.end() && held->second == kWriter;
         });
}

// kWriter for one writer, else the number of readers.
void Claims::Take(const ClaimedNames& names) {
  DCHECK(AreFree(names));
  for (const std::string& name : names.writes) holders_[name] = kWriter;
  for (const std::string& name : names.reads) ++holders_[name];
}

// REQUIRES: taken with the same names.
void Claims::Release(const ClaimedNames& names) {
  for (const std::string& name : names.writes) holders_.erase(name);
  for (const std::string& name : names.reads) {
    const auto held = holders_.find(name);
    CHECK(held != holders_.end());
    if (--held->second == 0) holders_.erase(held);
  }
}

}  // namespace tensorcast::global_store
