// Keys: names bound to artifacts, changed by compare-and-swap on their revision.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/artifact/manifest.h"
#include "global_store/directory/directory.h"

namespace tensorcast::global_store {
namespace {

constexpr size_t kMaxKeyBytes = 512;

absl::Status CheckKeyName(std::string_view key) {
  if (key.empty() || key.size() > kMaxKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a key has 1 to ", kMaxKeyBytes, " bytes, this one has ", key.size()));
  }
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::any_of(key.begin(), key.end(), is_control)) {
    return absl::InvalidArgumentError("a key has no control characters");
  }
  if (BeginsAsArtifactId(key)) {
    return absl::InvalidArgumentError(absl::StrCat("a key cannot look like an artifact id: ", key));
  }
  return absl::OkStatus();
}

absl::Status CheckRevision(std::string_view key, uint64_t current, std::optional<uint64_t> expected) {
  if (!expected.has_value() || *expected == current) return absl::OkStatus();
  if (current == 0) {
    return absl::FailedPreconditionError(absl::StrCat("key ", key, " is not bound, but revision ", *expected,
                                                      " was expected: resolve it again"));
  }
  return absl::FailedPreconditionError(absl::StrCat("key ", key, " is at revision ", current, ", not ",
                                                    *expected, ": resolve it again and decide anew"));
}

absl::Status NoSuchKey(std::string_view key) {
  return absl::NotFoundError(absl::StrCat("key ", key, " is not bound"));
}

}  // namespace

void Directory::ApplyKey(const KeyRecord& record) {
  if (auto old = keys_.find(record.name); old != keys_.end() && !old->second.deleted) {
    --live_keys_;
    if (auto artifact = artifacts_.find(old->second.artifact_id); artifact != artifacts_.end()) {
      artifact->second.keys.erase(record.name);
    }
  }
  keys_[record.name] = record;
  if (record.deleted) return;
  ++live_keys_;
  if (auto artifact = artifacts_.find(record.artifact_id); artifact != artifacts_.end()) {
    artifact->second.keys.insert(record.name);
  }
}

uint64_t Directory::CurrentRevision(std::string_view key) const {
  auto found = keys_.find(key);
  return found == keys_.end() || found->second.deleted ? 0 : found->second.revision;
}

absl::StatusOr<KeyRecord> Directory::PlanBinding(std::string_view key, std::string_view artifact_id,
                                                 std::optional<uint64_t> expected, absl::Time now) const {
  TC_RETURN_IF_ERROR(CheckKeyName(key));
  TC_RETURN_IF_ERROR(CheckRevision(key, CurrentRevision(key), expected));
  // A deleted key's revision is kept, so that a later binding never repeats one.
  auto found = keys_.find(key);
  const uint64_t last = found == keys_.end() ? 0 : found->second.revision;
  return KeyRecord{.name = std::string(key),
                   .artifact_id = std::string(artifact_id),
                   .revision = last + 1,
                   .updated = now,
                   .deleted = false};
}

absl::StatusOr<KeyPlan> Directory::PrepareBindKey(std::string_view key, std::string_view artifact_id,
                                                  std::optional<uint64_t> expected, absl::Time now) const {
  if (!artifacts_.contains(artifact_id)) {
    return absl::NotFoundError(absl::StrCat("cannot bind key ", key, ": there is no artifact ", artifact_id));
  }
  TC_ASSIGN_OR_RETURN(KeyRecord record, PlanBinding(key, artifact_id, expected, now));
  return KeyPlan{.facts = {.artifacts = {}, .keys = {record}}, .key = record};
}

absl::StatusOr<KeyPlan> Directory::PrepareDeleteKey(std::string_view key, std::optional<uint64_t> expected,
                                                    absl::Time now) const {
  const uint64_t current = CurrentRevision(key);
  if (current == 0) return NoSuchKey(key);
  TC_RETURN_IF_ERROR(CheckRevision(key, current, expected));
  KeyRecord record = keys_.find(key)->second;
  record.deleted = true;
  record.updated = now;
  return KeyPlan{.facts = {.artifacts = {}, .keys = {record}}, .key = record};
}

absl::StatusOr<KeyRecord> Directory::ResolveKey(std::string_view key) const {
  if (CurrentRevision(key) == 0) return NoSuchKey(key);
  return keys_.find(key)->second;
}

std::vector<KeyRecord> Directory::ListKeys(std::string_view prefix, std::string_view after,
                                           size_t limit) const {
  std::vector<KeyRecord> records;
  auto it = after < prefix ? keys_.lower_bound(prefix) : keys_.upper_bound(after);
  for (; it != keys_.end() && records.size() < limit && absl::StartsWith(it->first, prefix); ++it) {
    if (!it->second.deleted) records.push_back(it->second);
  }
  return records;
}

}  // namespace tensorcast::global_store
