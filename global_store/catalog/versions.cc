// Versions that no key keeps any more. Their artifacts may be deleted with the last copy: when a node asks to
// evict it, or once no node has a copy. The artifact is deleted before the consent is given, and the deletion
// is a durable change, so a concurrent bind of a key to it either keeps the artifact or finds it gone.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "global_store/catalog/catalog.h"

namespace tensorcast::global_store {

ArtifactRecord Catalog::ReleaseOf(const std::string& artifact_id, absl::Time now) {
  return {.artifact_id = artifact_id, .deleted = true, .updated = now, .versioned = true};
}

void Catalog::NoteReleased(const std::string& artifact_id) {
  auto found = artifacts_.find(artifact_id);
  if (found == artifacts_.end()) {
    released_.erase(artifact_id);
    return;
  }
  Artifact& artifact = found->second;
  // The counters change only with the flag, so this function may be called any number of times.
  const bool kept = differences_.IsKept(artifact_id);
  if (kept != artifact.kept_difference) {
    artifact.kept_difference = kept;
    kept_differences_ = kept ? kept_differences_ + 1 : kept_differences_ - 1;
    const uint64_t bytes = artifact.record.image_bytes;
    kept_difference_bytes_ = kept ? kept_difference_bytes_ + bytes : kept_difference_bytes_ - bytes;
  }
  if (artifact.IsReleased()) {
    released_.insert(artifact_id);
  } else {
    released_.erase(artifact_id);
  }
}

absl::StatusOr<DurableFacts> Catalog::PrepareDeleteDifference(const std::string& artifact_id,
                                                              absl::Time now) const {
  if (differences_.Find(artifact_id) == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        "delete difference ", artifact_id,
        ": no difference has this id; no action is needed if the difference was deleted before"));
  }
  DurableFacts facts;
  facts.artifacts.push_back(ReleaseOf(artifact_id, now));
  return facts;
}

void Catalog::HoldEnd(const std::string& artifact_id) {
  if (!differences_.Hold(artifact_id)) return;
  for (const std::string& difference : differences_.Of(artifact_id)) NoteReleased(difference);
}

void Catalog::ReleaseEnd(const std::string& artifact_id) {
  if (!differences_.Release(artifact_id)) return;
  for (const std::string& difference : differences_.Of(artifact_id)) NoteReleased(difference);
}

std::vector<std::string> Catalog::EndsOf(const KeyRecord& key) const {
  std::vector<std::string> ends = {key.artifact_id};
  for (const KeyVersion& version : key.earlier) ends.push_back(version.artifact_id);
  ends.insert(ends.end(), key.past.begin(), key.past.end());
  ends.resize(std::min<size_t>(ends.size(), retention_.difference_versions));
  return ends;
}

// Bounds the tombstones of versions: beyond kMaxVersionTombstones the oldest go, however young they are.
absl::Time Catalog::VersionTombstonesFrom(absl::Time oldest) const {
  std::vector<absl::Time> deleted;
  for (const auto& [artifact_id, tombstone] : tombstones_) {
    if (tombstone.versioned) deleted.push_back(tombstone.deleted);
  }
  if (deleted.size() <= kMaxVersionTombstones) return oldest;
  const auto first = deleted.end() - kMaxVersionTombstones;
  std::nth_element(deleted.begin(), first, deleted.end());
  return std::max(oldest, *first);
}

// Without ids, so that an engine which is refused several replicas for one reason can say it once.
std::string Catalog::WhyItStays(std::string_view artifact_id, std::string_view copies) const {
  const Artifact* artifact = Find(artifact_id);
  if (artifact == nullptr) {
    return "the replica is the last copy of an artifact that is not published yet; wait until the put has "
           "ended";
  }
  const Artifact& state = *artifact;
  if (!state.keys.empty()) {
    const std::string& key = *state.keys.begin();
    return absl::StrCat("the replica is the last copy of the artifact that key ", key, " names", copies,
                        "; replicate the artifact, pack it to disk, or delete it with `tensorcast rm ", key,
                        "`");
  }
  if (!state.kept_by.empty()) {
    const KeyRecord& key = keys_.find(*state.kept_by.begin())->second;
    return absl::StrCat(
        "the replica is the last copy of an earlier version of key ", key.name, ", and the key keeps ",
        KeepOf(key), " versions", copies,
        "; keep fewer versions with `tensorcast put --keep`, or delete the version with `tensorcast rm "
        "ARTIFACT_ID`");
  }
  return absl::StrCat("the replica is the last copy of an artifact that no key names", copies,
                      "; replicate the artifact, pack it to disk, or delete all artifacts that no key names "
                      "with `tensorcast gc --older-than 0s`");
}

}  // namespace tensorcast::global_store
