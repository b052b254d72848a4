// Keys: names bound to artifacts, changed by compare-and-swap on their revision.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/text.h"
#include "core/artifact/manifest.h"
#include "global_store/catalog/catalog.h"

namespace tensorcast::global_store {

constexpr size_t kMaxKeyBytes = 512;

absl::Status CheckKeyName(std::string_view key) {
  if (key.empty() || key.size() > kMaxKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "name a key: the name has ", key.size(), " bytes, not 1 to ", kMaxKeyBytes, "; choose another name"));
  }
  if (!IsPrintable(key)) {
    return absl::InvalidArgumentError(
        absl::StrCat("name a key ", QuoteName(key),
                     ": the name is not UTF-8 or has control characters; choose another name"));
  }
  if (BeginsAsArtifactId(key)) {
    return absl::InvalidArgumentError(
        absl::StrCat("name a key ", key, ": the name looks like an artifact id; choose another name"));
  }
  return absl::OkStatus();
}

namespace {

absl::Status CheckRevision(std::string_view key, uint64_t current, std::optional<uint64_t> expected) {
  if (!expected.has_value() || *expected == current) return absl::OkStatus();
  if (current == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("change key ", key, ": the key is not bound, but revision ", *expected,
                     " was expected; expect revision 0 to bind a key that is not bound"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("change key ", key, ": the key is at revision ", current, ", but revision ", *expected,
                   " was expected; resolve the key again before the next change"));
}

absl::Status NoSuchKey(std::string_view key) {
  return absl::NotFoundError(absl::StrCat(
      "find key ", key, ": the key is not bound; check the name, or bind an artifact to the key"));
}

}  // namespace

// The links of the key's previous record go before those of the new one are made.
void Catalog::Apply(const KeyRecord& record) {
  if (auto old = keys_.find(record.name); old != keys_.end() && !old->second.deleted) {
    --live_keys_;
    UnlinkKey(old->second);
  }
  KeyRecord& key = keys_[record.name] = record;
  if (record.deleted) return;
  ++live_keys_;
  // The facts may be from before the configuration asked for fewer versions, and what was kept then may be
  // deleted by now.
  KeepLastVersions(key);
  const auto clear_gone = [this](std::string& files_id) {
    if (!artifacts_.contains(files_id)) files_id.clear();
  };
  clear_gone(key.files_id);
  for (KeyVersion& version : key.earlier) clear_gone(version.files_id);
  LinkKey(key);
}

// Versions that the key keeps no longer may be ends of differences still: they go from `earlier` to `past`.
void Catalog::KeepLastVersions(KeyRecord& key) const {
  std::vector<KeyVersion> kept;
  std::vector<std::string> past;
  for (KeyVersion& version : key.earlier) {
    if (kept.size() + 1 < KeepOf(key) && artifacts_.contains(version.artifact_id)) {
      kept.push_back(std::move(version));
    } else {
      past.push_back(std::move(version.artifact_id));
    }
  }
  past.insert(past.end(), key.past.begin(), key.past.end());
  const size_t ends = retention_.difference_versions - 1;  // besides the current one
  past.resize(std::min(past.size(), ends - std::min(ends, kept.size())));
  key.earlier = std::move(kept);
  key.past = std::move(past);
}

// The tensors and files of a key's binding are held by it, and those of its earlier versions are kept by it.
// Its last versions are ends of differences, whether they are kept or not.
// Files that several versions have in common are held, not kept, while the binding has them.
void Catalog::LinkKey(const KeyRecord& key) {
  const auto link = [&](const std::string& artifact_id, std::set<std::string> Artifact::* keys) {
    const auto artifact = artifacts_.find(artifact_id);
    if (artifact == artifacts_.end()) return;
    (artifact->second.*keys).insert(key.name);
    NoteReleased(artifact_id);
  };
  link(key.artifact_id, &Artifact::keys);
  link(key.files_id, &Artifact::keys);
  for (const KeyVersion& version : key.earlier) {
    link(version.artifact_id, &Artifact::kept_by);
    if (version.files_id != key.files_id) link(version.files_id, &Artifact::kept_by);
  }
  for (const std::string& end : EndsOf(key)) HoldEnd(end);
}

// Undoes LinkKey. Both compute the ends from the same record, so each hold is released exactly once.
void Catalog::UnlinkKey(const KeyRecord& key) {
  const auto unlink = [&](const std::string& artifact_id) {
    const auto artifact = artifacts_.find(artifact_id);
    if (artifact == artifacts_.end()) return;
    artifact->second.keys.erase(key.name);
    artifact->second.kept_by.erase(key.name);
    NoteReleased(artifact_id);
  };
  unlink(key.artifact_id);
  unlink(key.files_id);
  for (const KeyVersion& version : key.earlier) {
    unlink(version.artifact_id);
    unlink(version.files_id);
  }
  for (const std::string& end : EndsOf(key)) ReleaseEnd(end);
}

uint32_t Catalog::KeepOf(const KeyRecord& key) const {
  return key.keep != 0 ? key.keep : retention_.KeepOf(key.name);
}

// 0 where the key is not bound: revisions begin with 1.
uint64_t Catalog::CurrentRevision(std::string_view key) const {
  auto found = keys_.find(key);
  return found == keys_.end() || found->second.deleted ? 0 : found->second.revision;
}

absl::StatusOr<std::string> Catalog::FilesFor(const BindRequest& request, const ArtifactRecord& artifact,
                                              const KeyRecord* before) const {
  if (!request.files_id.empty()) {
    const Artifact* files = Find(request.files_id);
    if (files == nullptr) {
      return absl::NotFoundError(absl::StrCat("bind key ", request.key, ": there is no artifact ",
                                              request.files_id,
                                              ", which was given for the key's files; put the files again"));
    }
    if (files->record.kind == ArtifactKind::kFiles) return request.files_id;
    return absl::InvalidArgumentError(absl::StrCat(
        "bind key ", request.key, ": the key's files cannot be artifact ", request.files_id,
        ", which is of kind ", ArtifactKindName(files->record.kind), "; give an artifact of kind files"));
  }
  if (before == nullptr) return std::string();
  if (before->artifact_id == request.artifact_id) return before->files_id;
  // Back to an earlier version: with the files that it had.
  const auto version = std::ranges::find(before->earlier, request.artifact_id, &KeyVersion::artifact_id);
  if (version != before->earlier.end() && !version->files_id.empty()) return version->files_id;
  // A trainer's next step has the tokenizer of the step before; another model under the key has not.
  const Artifact* tensors = Find(before->artifact_id);
  const bool same_model = tensors != nullptr && !artifact.tensors_digest.empty() &&
                          tensors->record.tensors_digest == artifact.tensors_digest;
  return same_model ? before->files_id : std::string();
}

absl::StatusOr<KeyRecord> Catalog::PlanBinding(const BindRequest& request, const ArtifactRecord& artifact,
                                               absl::Time now) const {
  TC_RETURN_IF_ERROR(CheckKeyName(request.key));
  if (artifact.kind != ArtifactKind::kTensors) {
    return absl::InvalidArgumentError(
        absl::StrCat("bind key ", request.key, ": artifact ", request.artifact_id, " is of kind ",
                     ArtifactKindName(artifact.kind), "; bind an artifact of kind tensors"));
  }
  if (request.keep.has_value()) {
    TC_RETURN_IF_ERROR(Annotate(CheckKeep(*request.keep), absl::StrCat("bind key ", request.key)));
  }
  TC_RETURN_IF_ERROR(CheckRevision(request.key, CurrentRevision(request.key), request.expected));
  KeyRecord record{.name = request.key, .artifact_id = request.artifact_id, .revision = 1, .updated = now};
  if (auto found = keys_.find(request.key); found != keys_.end()) {
    const KeyRecord& before = found->second;
    // A deleted key's revision is kept, so that a later binding never repeats one.
    record.revision = before.revision + 1;
    record.keep = before.keep;
    record.earlier = before.earlier;
    record.past = before.past;
    // The binding that is replaced becomes the newest of the earlier versions.
    if (!before.deleted) {
      record.earlier.insert(record.earlier.begin(), KeyVersion{.artifact_id = before.artifact_id,
                                                               .revision = before.revision,
                                                               .bound = before.updated,
                                                               .files_id = before.files_id});
    }
  }
  const KeyRecord* bound = CurrentRevision(request.key) == 0 ? nullptr : &keys_.find(request.key)->second;
  TC_ASSIGN_OR_RETURN(record.files_id, FilesFor(request, artifact, bound));
  record.keep = request.keep.value_or(record.keep);
  // The same artifact bound again is one version, not two.
  std::erase_if(record.earlier,
                [&](const KeyVersion& version) { return version.artifact_id == request.artifact_id; });
  std::erase(record.past, request.artifact_id);
  KeepLastVersions(record);
  return record;
}

absl::StatusOr<KeyPlan> Catalog::PrepareBindKey(const BindRequest& request, absl::Time now) const {
  const auto artifact = artifacts_.find(request.artifact_id);
  if (artifact == artifacts_.end()) {
    return absl::NotFoundError(absl::StrCat("bind key ", request.key, ": there is no artifact ",
                                            request.artifact_id, "; put or import the artifact first"));
  }
  TC_ASSIGN_OR_RETURN(KeyRecord record, PlanBinding(request, artifact->second.record, now));
  KeyPlan plan{.facts = {.keys = {record}}, .key = record};
  // Under a key the artifact is a version: it may go when no key keeps it any more.
  if (!artifact->second.record.versioned) {
    plan.facts.artifacts.push_back(artifact->second.record);
    plan.facts.artifacts.back().versioned = true;
  }
  return plan;
}

absl::StatusOr<KeyPlan> Catalog::PrepareDeleteKey(std::string_view key, std::optional<uint64_t> expected,
                                                  absl::Time now) const {
  const uint64_t current = CurrentRevision(key);
  if (current == 0) return NoSuchKey(key);
  TC_RETURN_IF_ERROR(CheckRevision(key, current, expected));
  KeyRecord record = keys_.find(key)->second;
  // The files are taken from the record before its versions are cleared below.
  std::set<std::string> files = {record.files_id};
  for (const KeyVersion& version : record.earlier) files.insert(version.files_id);
  record.deleted = true;
  record.updated = now;
  record.keep = 0;
  // Without the key its earlier versions are kept no longer.
  record.earlier.clear();
  record.past.clear();
  record.files_id.clear();
  KeyPlan plan{.facts = {.keys = {record}}, .key = record};
  // It did not lose its last key to a later version, so it stays until it is deleted.
  const auto artifact = artifacts_.find(record.artifact_id);
  if (artifact != artifacts_.end() && artifact->second.record.versioned &&
      artifact->second.keys.size() == 1 && artifact->second.kept_by.empty()) {
    plan.facts.artifacts.push_back(artifact->second.record);
    plan.facts.artifacts.back().versioned = false;
  }
  // Files mean nothing without a key, so those that only this one has go with it.
  for (const std::string& files_id : files) {
    const Artifact* found = Find(files_id);
    if (found == nullptr) continue;
    std::set<std::string> holders = found->keys;
    holders.insert(found->kept_by.begin(), found->kept_by.end());
    if (holders == std::set<std::string>{record.name}) {
      plan.facts.artifacts.push_back(ReleaseOf(files_id, now));
    }
  }
  return plan;
}

absl::StatusOr<KeyRecord> Catalog::ResolveKey(std::string_view key) const {
  if (CurrentRevision(key) == 0) return NoSuchKey(key);
  return keys_.find(key)->second;
}

std::vector<std::string> Catalog::FilesBoundWith(std::string_view artifact_id) const {
  std::set<std::string> files;
  if (const Artifact* artifact = Find(artifact_id)) {
    for (const std::string& name : artifact->keys) {
      const KeyRecord& key = keys_.find(name)->second;
      if (key.artifact_id == artifact_id && !key.files_id.empty()) files.insert(key.files_id);
    }
  }
  return {files.begin(), files.end()};
}

std::vector<KeyRecord> Catalog::ListKeys(std::string_view prefix, std::string_view after,
                                         size_t limit) const {
  std::vector<KeyRecord> records;
  // `after` is the last name of the previous page, as the caller sends it back.
  // A token before the prefix means the first page.
  auto it = after < prefix ? keys_.lower_bound(prefix) : keys_.upper_bound(after);
  for (; it != keys_.end() && records.size() < limit && absl::StartsWith(it->first, prefix); ++it) {
    if (!it->second.deleted) records.push_back(it->second);
  }
  return records;
}

// All keys are looked at once, and the last ones kept in order: few of many.
std::vector<const KeyRecord*> Catalog::LastBound(size_t limit) const {
  std::vector<const KeyRecord*> last;
  const auto newer = [](const KeyRecord* a, const KeyRecord* b) { return a->updated > b->updated; };
  for (const auto& [name, key] : keys_) {
    if (key.deleted || (last.size() == limit && !newer(&key, last.back()))) continue;
    if (last.size() == limit) last.pop_back();
    last.insert(std::ranges::upper_bound(last, &key, newer), &key);
  }
  return last;
}

}  // namespace tensorcast::global_store
