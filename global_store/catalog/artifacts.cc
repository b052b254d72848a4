// Artifacts: durable facts, and the nodes' findings about the files that they were imported from.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "global_store/catalog/catalog.h"

namespace tensorcast::global_store {
namespace {

constexpr size_t kKeysNamedInErrors = 5;
// In one change, of which a metadata store takes so many operations.
constexpr size_t kDifferencesAtOnce = 100;

// The first of them, for an error.
std::string SomeOf(const std::set<std::string>& keys) {
  std::vector<std::string> named;
  for (auto key = keys.begin(); key != keys.end() && named.size() < kKeysNamedInErrors; ++key) {
    named.push_back(*key);
  }
  return absl::StrCat(absl::StrJoin(named, ", "), keys.size() > named.size() ? ", ..." : "");
}

// Puts `origin` in, in place of an older one of its place. False when that changes nothing. The same files
// once more stay compared, and shared objects stay those of the first node that imported them.
bool MergeOrigin(std::vector<Origin>& origins, Origin origin) {
  const auto at = std::ranges::lower_bound(origins, PlaceOf(origin), {}, PlaceOf);
  if (at == origins.end() || PlaceOf(*at) != PlaceOf(origin)) {
    origins.insert(at, std::move(origin));
    return true;
  }
  if (SameFiles(*at, origin)) {
    origin.compared |= at->compared;
    origin.node_id = at->node_id;
  }
  if (*at == origin) return false;
  *at = std::move(origin);
  return true;
}

}  // namespace

std::string_view PlaceOf(const Origin& origin) {
  return IsShared(origin) ? origin.objects.front().uri : origin.node_id;
}

bool SameFiles(const Origin& a, const Origin& b) {
  return PlaceOf(a) == PlaceOf(b) && a.objects == b.objects && a.untraceable == b.untraceable;
}

const Catalog::OriginNote* Catalog::Artifact::NoteOf(const Origin& origin) const {
  const auto note = origin_notes.find({std::string(PlaceOf(origin)), origin.node_id});
  return note == origin_notes.end() ? nullptr : &note->second;
}

bool Catalog::Artifact::IsGone(const Origin& origin) const {
  const OriginNote* note = NoteOf(origin);
  return note != nullptr && note->finding == OriginFinding::kGone;
}

const Catalog::Artifact* Catalog::Find(std::string_view artifact_id) const {
  const auto artifact = artifacts_.find(artifact_id);
  return artifact == artifacts_.end() ? nullptr : &artifact->second;
}

absl::StatusOr<const Catalog::Artifact*> Catalog::Get(std::string_view artifact_id) const {
  if (const Artifact* artifact = Find(artifact_id)) return artifact;
  return absl::NotFoundError(
      absl::StrCat("find artifact ", artifact_id, ": no artifact has this id; put or import the artifact"));
}

// Replaces the record of an artifact, and keeps what is derived from the records in step: the tombstones, the
// edges between artifacts, and the artifacts that hold their differences because they stay (`stays`).
void Catalog::Apply(const ArtifactRecord& record) {
  const Artifact* before = Find(record.artifact_id);
  const bool stayed = before != nullptr && !before->record.versioned;
  const bool stays = !record.deleted && !record.versioned;
  if (record.deleted) {
    differences_.Remove(record.artifact_id);
    NoteReleased(record.artifact_id);  // while its bytes are known
    if (stayed) ReleaseEnd(record.artifact_id);
    artifacts_.erase(record.artifact_id);
    released_.erase(record.artifact_id);
    tombstones_[record.artifact_id] = {.deleted = record.updated, .versioned = record.versioned};
    return;
  }
  // Published again after it was deleted.
  tombstones_.erase(record.artifact_id);
  Artifact& artifact = artifacts_[record.artifact_id];
  // What was found of an origin that is another one now says nothing of that.
  for (const Origin& origin : artifact.record.origins) {
    const auto& origins = record.origins;
    if (std::find(origins.begin(), origins.end(), origin) == origins.end()) {
      std::erase_if(artifact.origin_notes,
                    [&](const auto& note) { return note.first.first == PlaceOf(origin); });
    }
  }
  artifact.record = record;
  if (record.kind == ArtifactKind::kDifference) {
    differences_.Add({.artifact_id = record.artifact_id,
                      .base_id = record.base_id,
                      .target_id = record.target_id,
                      .image_bytes = record.image_bytes});
  }
  // Each artifact that stays has one hold as an end. Keys hold their versions besides (LinkKey).
  if (stays && !stayed) HoldEnd(record.artifact_id);
  if (stayed && !stays) ReleaseEnd(record.artifact_id);
  NoteReleased(record.artifact_id);
}

void Catalog::Purge(absl::Time before, absl::Time versions) {
  absl::erase_if(tombstones_, [&](const auto& entry) {
    return entry.second.deleted < (entry.second.versioned ? versions : before);
  });
  for (auto it = keys_.begin(); it != keys_.end();) {
    it = it->second.deleted && it->second.updated < before ? keys_.erase(it) : std::next(it);
  }
}

// Nothing new comes of it: an artifact that was deleted meanwhile stays so.
absl::StatusOr<PublishPlan> Catalog::PrepareCompared(const std::string& artifact_id,
                                                     const Origin& origin) const {
  const Artifact* known = Find(artifact_id);
  const bool is_listed =
      known != nullptr && std::ranges::any_of(known->record.origins, [&](const Origin& on_record) {
        return SameFiles(on_record, origin);
      });
  if (!is_listed) {
    return absl::FailedPreconditionError(
        absl::StrCat("publish the comparison of ", artifact_id, ": ",
                     known == nullptr ? "the artifact was deleted meanwhile"
                                      : "the compared files are no longer an origin of the artifact",
                     "; import the artifact again"));
  }
  PublishPlan plan{.artifacts = {artifact_id}, .existed = true};
  ArtifactRecord record = known->record;
  if (MergeOrigin(record.origins, origin)) plan.facts.artifacts.push_back(std::move(record));
  return plan;
}

absl::Status Catalog::CheckDifference(const ArtifactRecord& difference,
                                      const ArtifactRecord& artifact) const {
  const auto publish = [&](const auto&... why) {
    return absl::StrCat("publish ", artifact.artifact_id, " with difference ", difference.artifact_id, ": ",
                        why...);
  };
  if (difference.kind != ArtifactKind::kDifference) {
    return absl::InvalidArgumentError(publish("the difference is of kind ", ArtifactKindName(difference.kind),
                                              "; give an artifact of kind difference"));
  }
  if (difference.target_id != artifact.artifact_id) {
    return absl::InvalidArgumentError(
        publish("the target of the difference is ", difference.target_id,
                "; give the difference that has the published artifact as its target"));
  }
  if (Find(difference.base_id) == nullptr) {
    return absl::FailedPreconditionError(
        publish("there is no artifact ", difference.base_id,
                ", which is the base of the difference; publish without the difference"));
  }
  return CheckEnds(difference, &artifact);
}

absl::Status Catalog::CheckEnds(const ArtifactRecord& difference, const ArtifactRecord* target) const {
  const auto publish = [&](const auto&... why) {
    return absl::InvalidArgumentError(
        absl::StrCat("publish difference ", difference.artifact_id, ": ", why...));
  };
  if (difference.base_id == difference.target_id) {
    return publish("the base and the target are both ", difference.base_id,
                   "; give a difference between two artifacts");
  }
  const Artifact* base = Find(difference.base_id);
  const Artifact* known_target = Find(difference.target_id);
  if (target == nullptr && known_target != nullptr) target = &known_target->record;
  for (const ArtifactRecord* end : {base == nullptr ? nullptr : &base->record, target}) {
    if (end == nullptr || end->kind == ArtifactKind::kTensors) continue;
    return publish("artifact ", end->artifact_id, " is of kind ", ArtifactKindName(end->kind),
                   "; give a base and a target of kind tensors");
  }
  return absl::OkStatus();
}

absl::StatusOr<PublishPlan> Catalog::PreparePublish(const ArtifactRecord& artifact,
                                                    const std::optional<BindRequest>& bind, absl::Time now,
                                                    const std::optional<ArtifactRecord>& difference) const {
  PublishPlan plan;
  // Alone it comes from a node that has it when the metadata is lost, maybe before its ends.
  if (artifact.kind == ArtifactKind::kDifference) TC_RETURN_IF_ERROR(CheckEnds(artifact, /*target=*/nullptr));
  ArtifactRecord record = artifact;
  record.created = now;
  record.updated = now;
  record.deleted = false;
  record.origins.clear();
  const Artifact* known = Find(artifact.artifact_id);
  plan.existed = known != nullptr;
  // The same content by another put, or a repeated one: the record keeps its time and gains an origin at
  // most.
  if (plan.existed) record = known->record;
  bool changed = !plan.existed;
  // A version of the key; put without one, a version that was about to go stays. Files are
  // bound with the tensors that are published after them, and go where that fails. A difference goes with the
  // last of the versions that it is between.
  const bool versioned = record.kind != ArtifactKind::kTensors || bind.has_value() ||
                         (record.versioned && !IsReleased(record.artifact_id));
  changed |= record.versioned != versioned;
  record.versioned = versioned;
  for (const Origin& origin : artifact.origins) changed |= MergeOrigin(record.origins, origin);
  if (changed) plan.facts.artifacts.push_back(record);
  plan.artifacts = {record.artifact_id};
  if (difference.has_value()) {
    TC_RETURN_IF_ERROR(CheckDifference(*difference, record));
    plan.artifacts.push_back(difference->artifact_id);
    plan.difference_existed = Find(difference->artifact_id) != nullptr;
    if (!plan.difference_existed) {
      ArtifactRecord& added = plan.facts.artifacts.emplace_back(*difference);
      added.created = now;
      added.updated = now;
      added.versioned = true;
    }
  }
  if (bind.has_value()) {
    TC_ASSIGN_OR_RETURN(KeyRecord key, PlanBinding(*bind, record, now));
    plan.key_revision = key.revision;
    plan.files_id = key.files_id;
    plan.facts.keys.push_back(std::move(key));
  }
  return plan;
}

absl::StatusOr<const Catalog::Artifact*> Catalog::GetToDelete(std::string_view artifact_id) const {
  TC_ASSIGN_OR_RETURN(const Artifact* artifact, Get(artifact_id));
  if (artifact->keys.empty()) return artifact;
  return absl::FailedPreconditionError(absl::StrCat(
      "delete artifact ", artifact_id, ": these keys bind the artifact, as a model or as files: ",
      SomeOf(artifact->keys), "; delete or rebind these keys first"));
}

absl::StatusOr<DurableFacts> Catalog::PrepareDeleteManyDifferences(std::string_view artifact_id,
                                                                   absl::Time now) const {
  TC_RETURN_IF_ERROR(GetToDelete(artifact_id).status());
  DurableFacts facts;
  const std::vector<std::string> differences = differences_.Of(artifact_id);
  if (differences.size() <= kDifferencesAtOnce) return facts;
  for (size_t i = 0; i < kDifferencesAtOnce; ++i) facts.artifacts.push_back(ReleaseOf(differences[i], now));
  return facts;
}

absl::StatusOr<DurableFacts> Catalog::PrepareDeleteArtifact(std::string_view artifact_id,
                                                            absl::Time now) const {
  TC_ASSIGN_OR_RETURN(const Artifact* found, GetToDelete(artifact_id));
  const Artifact& artifact = *found;
  DurableFacts facts;
  facts.artifacts.push_back({.artifact_id = std::string(artifact_id), .deleted = true, .updated = now});
  for (const std::string& name : artifact.kept_by) {
    KeyRecord& key = facts.keys.emplace_back(keys_.find(name)->second);
    std::erase_if(key.earlier, [&](const KeyVersion& version) { return version.artifact_id == artifact_id; });
    for (KeyVersion& version : key.earlier) {
      if (version.files_id == artifact_id) version.files_id.clear();
    }
  }
  for (const std::string& difference : differences_.Of(artifact_id)) {
    facts.artifacts.push_back(ReleaseOf(difference, now));
  }
  return facts;
}

void Catalog::NoteOrigin(std::string_view artifact_id, const Origin& origin, OriginFinding finding,
                         std::string_view reason, SteadyTime now) {
  auto artifact = artifacts_.find(artifact_id);
  if (artifact == artifacts_.end()) return;
  for (const Origin& known : artifact->second.record.origins) {
    if (!SameFiles(known, origin)) continue;
    OriginNote& note = artifact->second.origin_notes[{std::string(PlaceOf(origin)), origin.node_id}];
    // Gone is final until the origin is published again: a file that was put back need not be what was
    // imported.
    if (note.finding == OriginFinding::kGone) return;
    note = {.finding = finding, .reason = std::string(reason), .noted = now};
  }
}

void Catalog::RenewOrigin(std::string_view artifact_id, std::string_view node_id) {
  auto artifact = artifacts_.find(artifact_id);
  if (artifact == artifacts_.end()) return;
  std::erase_if(artifact->second.origin_notes,
                [&](const auto& note) { return note.first.second == node_id; });
}

}  // namespace tensorcast::global_store
