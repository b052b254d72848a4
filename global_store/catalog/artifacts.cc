// Artifacts: durable facts, and the replicas and keys that belong to each.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "global_store/directory/directory.h"

namespace tensorcast::global_store {
namespace {

constexpr size_t kKeysNamedInErrors = 5;

absl::Status NoSuchArtifact(std::string_view artifact_id) {
  return absl::NotFoundError(absl::StrCat("there is no artifact ", artifact_id));
}

// The first of them, for an error.
std::string SomeOf(const std::set<std::string>& keys) {
  std::vector<std::string> named;
  for (auto key = keys.begin(); key != keys.end() && named.size() < kKeysNamedInErrors; ++key) {
    named.push_back(*key);
  }
  return absl::StrCat(absl::StrJoin(named, ", "), keys.size() > named.size() ? ", ..." : "");
}

// Puts `origin` in, in place of an older one of its node. False when that changes nothing. The same files
// once more stay compared.
bool MergeOrigin(std::vector<Origin>& origins, Origin origin) {
  auto at = std::lower_bound(origins.begin(), origins.end(), origin,
                             [](const Origin& a, const Origin& b) { return a.node_id < b.node_id; });
  if (at == origins.end() || at->node_id != origin.node_id) {
    origins.insert(at, std::move(origin));
    return true;
  }
  if (SameFiles(*at, origin)) origin.compared |= at->compared;
  if (*at == origin) return false;
  *at = std::move(origin);
  return true;
}

}  // namespace

// What was committed. It cannot fail: all checks were made by the Prepare... that planned it.
void Directory::Apply(const DurableFacts& facts, SteadyTime now) {
  for (const ArtifactRecord& record : facts.artifacts) {
    ApplyArtifact(record);
    if (record.deleted) {
      std::vector<std::string> ending;
      for (const auto& [grant_id, grant] : grants_) {
        if (grant.artifact_id == record.artifact_id) ending.push_back(grant_id);
      }
      EndGrants(ending, GrantEnd::kRevoked, now);
    }
  }
  for (const KeyRecord& record : facts.keys) ApplyKey(record);
  for (const NodeBinding& binding : facts.nodes) {
    if (const auto bound = names_of_nodes_.find(binding.node_id); bound != names_of_nodes_.end()) {
      nodes_of_names_.erase(bound->second);
      names_of_nodes_.erase(bound);
    }
    if (binding.name.empty()) continue;
    names_of_nodes_[binding.node_id] = binding.name;
    nodes_of_names_[binding.name] = binding.node_id;
  }
  for (const TaskRecord& record : facts.tasks) ApplyTask(record, now);
}

void Directory::Load(const DurableFacts& facts, SteadyTime now) {
  Apply(facts, now);
  // Longer than a node needs: what is deleted is told to those that come later, as forgotten.
  releases_from_ = now + 6 * options_.node_ttl;
  // Nodes that were here before the restart need that long to be heard again; until then a receiver without a
  // source is told to wait for them.
  if (options_.awaits_nodes && !artifacts_.empty()) awaited_until_ = now + options_.node_ttl;
}

void Directory::ApplyArtifact(const ArtifactRecord& record) {
  if (record.deleted) {
    artifacts_.erase(record.artifact_id);
    released_.erase(record.artifact_id);
    tombstones_[record.artifact_id] = {.deleted = record.updated, .versioned = record.versioned};
    while (true) {
      const auto task = tasks_.lower_bound(record.artifact_id + "\n");
      if (task == tasks_.end() || task->second.record.artifact_id != record.artifact_id) return;
      EraseTask(std::string(task->first));
    }
  }
  // Published again after it was deleted.
  tombstones_.erase(record.artifact_id);
  ArtifactState& artifact = artifacts_[record.artifact_id];
  // What was found of an origin that is another one now says nothing of that.
  for (const Origin& origin : artifact.record.origins) {
    const auto& origins = record.origins;
    if (std::find(origins.begin(), origins.end(), origin) == origins.end()) {
      artifact.origin_notes.erase(origin.node_id);
    }
  }
  artifact.record = record;
  NoteReleased(record.artifact_id);
}

void Directory::PurgeTombstones(absl::Time before, absl::Time versions) {
  absl::erase_if(tombstones_, [&](const auto& entry) {
    return entry.second.deleted < (entry.second.versioned ? versions : before);
  });
  for (auto it = keys_.begin(); it != keys_.end();) {
    it = it->second.deleted && it->second.updated < before ? keys_.erase(it) : std::next(it);
  }
}

// That the node has compared the files of an import. Nothing new comes of it: an artifact that was deleted
// meanwhile stays so.
absl::StatusOr<PublishPlan> Directory::PrepareCompared(const PublishRequest& request) const {
  const std::string& artifact_id = request.artifact.artifact_id;
  const auto known = artifacts_.find(artifact_id);
  Origin origin = *request.origin;
  origin.node_id = request.node.node_id;
  if (known == artifacts_.end() ||
      std::ranges::none_of(known->second.record.origins,
                           [&](const Origin& on_record) { return SameFiles(on_record, origin); })) {
    return absl::FailedPreconditionError(
        absl::StrCat("publish the comparison of ", artifact_id,
                     ": it was deleted, or imported from other files meanwhile; import it again"));
  }
  PublishPlan plan{.existed = true};
  ArtifactRecord record = known->second.record;
  if (MergeOrigin(record.origins, std::move(origin))) plan.facts.artifacts.push_back(std::move(record));
  return plan;
}

absl::StatusOr<PublishPlan> Directory::PreparePublish(const PublishRequest& request, absl::Time now) const {
  // A process that was replaced, or expired, must not add what would be listed under its successor.
  TC_RETURN_IF_ERROR(CheckIdentity(request.node));
  if (request.origin.has_value() && request.origin->compared) return PrepareCompared(request);
  if (request.replica.has_value()) {
    TC_RETURN_IF_ERROR(ValidateReplica(nodes_.find(request.node.node_id)->second, *request.replica));
    if (request.replica->artifact_id != request.artifact.artifact_id) {
      return absl::InvalidArgumentError(
          absl::StrCat("the replica ", request.replica->id, " is of ", request.replica->artifact_id,
                       ", but the manifest is of ", request.artifact.artifact_id));
    }
  }
  PublishPlan plan;
  ArtifactRecord record = request.artifact;
  record.created = now;
  record.updated = now;
  record.deleted = false;
  record.origins.clear();
  auto known = artifacts_.find(request.artifact.artifact_id);
  plan.existed = known != artifacts_.end();
  // The same content by another put, or a repeated one: the record keeps its time and gains an origin at
  // most.
  if (plan.existed) record = known->second.record;
  bool changed = !plan.existed;
  // A version of the key; put without one, a version that was about to go is not to go any more.
  const bool versioned = !request.key.empty() || (record.versioned && !IsReleased(record.artifact_id));
  changed |= record.versioned != versioned;
  record.versioned = versioned;
  if (request.origin.has_value()) {
    Origin origin = *request.origin;
    origin.node_id = request.node.node_id;
    changed |= MergeOrigin(record.origins, std::move(origin));
  }
  if (changed) plan.facts.artifacts.push_back(std::move(record));
  if (request.key.empty() && request.keep.has_value()) {
    return absl::InvalidArgumentError(
        "put: keep is of a key, and no key was given; give a key, or leave it out");
  }
  if (!request.key.empty()) {
    TC_ASSIGN_OR_RETURN(KeyRecord key, PlanBinding({.key = request.key,
                                                    .artifact_id = request.artifact.artifact_id,
                                                    .expected = request.expected_revision,
                                                    .keep = request.keep},
                                                   now));
    plan.key_revision = key.revision;
    plan.facts.keys.push_back(std::move(key));
  }
  return plan;
}

void Directory::AddPublishedReplica(const NodeIdentity& node, const ReplicaInfo& replica) {
  absl::StatusOr<NodeState*> live = FindLive(node);
  if (!live.ok()) return;
  // The node's own updates are newer than what travelled with the publication.
  if ((*live)->replicas.contains(replica.id)) return;
  if (ValidateReplica(**live, replica).ok()) PutReplica(**live, replica);
}

absl::StatusOr<DurableFacts> Directory::PrepareDeleteArtifact(std::string_view artifact_id,
                                                              absl::Time now) const {
  auto found = artifacts_.find(artifact_id);
  if (found == artifacts_.end()) return NoSuchArtifact(artifact_id);
  const ArtifactState& artifact = found->second;
  if (!artifact.keys.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("artifact ", artifact_id, " is bound to the keys ",
                                                      SomeOf(artifact.keys),
                                                      ": delete or rebind them first"));
  }
  DurableFacts facts;
  facts.artifacts.push_back({.artifact_id = std::string(artifact_id), .deleted = true, .updated = now});
  for (const std::string& name : artifact.kept_by) {
    KeyRecord& key = facts.keys.emplace_back(keys_.find(name)->second);
    std::erase_if(key.earlier, [&](const KeyVersion& version) { return version.artifact_id == artifact_id; });
  }
  return facts;
}

}  // namespace tensorcast::global_store
