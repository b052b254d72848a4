// The catalog: which artifacts exist, which keys name and keep them, which were deleted, the differences
// between them, and the files that they were imported from. All of it is durable facts, but what nodes found
// when they looked at these files.
//
// Durable facts change in two steps: `Prepare...` checks and returns the new facts, and `Apply` takes them
// once they are committed. REQUIRES between the two: no other durable change of the same facts.
//
// Owns its state; knows no nodes and no replicas. Thread-compatible: one caller at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/steady_time.h"
#include "global_store/catalog/differences.h"
#include "global_store/catalog/facts.h"
#include "global_store/catalog/plans.h"
#include "global_store/catalog/retention.h"

namespace tensorcast::global_store {

// INVALID_ARGUMENT for a name that no key can have.
absl::Status CheckKeyName(std::string_view key);

class Catalog {
 public:
  struct OriginNote {
    OriginFinding finding = OriginFinding::kIntact;  // never kSilent: that is about the node
    std::string reason;                              // why it is gone, or how far a comparison is
    SteadyTime noted;
  };
  struct Artifact {
    ArtifactRecord record;
    std::set<std::string> keys;
    std::set<std::string> kept_by;  // keys of which it is an earlier version
    // Of the origins in `record`: by place, and by the node that looked.
    std::map<std::pair<std::string, std::string>, OriginNote> origin_notes;

    bool kept_difference = false;  // it is one, and is kept (differences.h)

    // A key names or keeps it, or it is a difference that is kept.
    bool IsWanted() const { return !keys.empty() || !kept_by.empty() || kept_difference; }
    // It was a version of keys, and is not wanted now.
    bool IsReleased() const { return record.versioned && !IsWanted(); }
    // What the node that `origin` names found last; null: it has not looked.
    const OriginNote* NoteOf(const Origin& origin) const;
    bool IsGone(const Origin& origin) const;
  };
  using Artifacts = absl::btree_map<std::string, Artifact>;  // by id

  explicit Catalog(Retention retention) : retention_(std::move(retention)) {}

  void Apply(const ArtifactRecord& record);
  void Apply(const KeyRecord& record);
  // Forgets tombstones of artifacts and keys that are older, as the metadata store's Purge does. `versions`
  // is the time for the tombstones of released versions.
  void Purge(absl::Time before, absl::Time versions);
  // The time before which tombstones of versions are to go so that few enough remain, at least `oldest`.
  absl::Time VersionTombstonesFrom(absl::Time oldest) const;

  // The record of `artifact`, with its origins merged into those that are known. `bind`, if any, binds a key
  // to it, with errors as of PrepareBindKey. A tombstone of the artifact is lifted. `difference`, if any,
  // makes the artifact: INVALID_ARGUMENT where it makes another one, FAILED_PRECONDITION where its base is
  // not there. INVALID_ARGUMENT, too, for a difference, alone or not, between others than tensors.
  absl::StatusOr<PublishPlan> PreparePublish(
      const ArtifactRecord& artifact, const std::optional<BindRequest>& bind, absl::Time now,
      const std::optional<ArtifactRecord>& difference = std::nullopt) const;
  // That the node of `origin` has compared these files with the artifact. FAILED_PRECONDITION where they are
  // not on record.
  absl::StatusOr<PublishPlan> PrepareCompared(const std::string& artifact_id, const Origin& origin) const;
  // FAILED_PRECONDITION, naming keys, while any is bound to it. Keys that keep it as an earlier version lose
  // that version. Differences from and to it are deleted with it.
  absl::StatusOr<DurableFacts> PrepareDeleteArtifact(std::string_view artifact_id, absl::Time now) const;
  // A part of the differences from and to it where they are too many for one change, else none: before
  // PrepareDeleteArtifact, with its errors. Each part may stand alone, since a difference only saves bytes.
  absl::StatusOr<DurableFacts> PrepareDeleteManyDifferences(std::string_view artifact_id,
                                                            absl::Time now) const;
  // The difference makes wrong bytes. NOT_FOUND: there is none with this id, and no path has it.
  absl::StatusOr<DurableFacts> PrepareDeleteDifference(const std::string& artifact_id, absl::Time now) const;

  // FAILED_PRECONDITION, naming the current revision, when `expected` differs from it (0: must not exist).
  // INVALID_ARGUMENT where the artifact is not of tensors, or its files are not of kind files; NOT_FOUND
  // where either is not there.
  absl::StatusOr<KeyPlan> PrepareBindKey(const BindRequest& request, absl::Time now) const;
  // The artifact that it names stays until it is deleted; versions that it kept are released. Files that only
  // this key has are deleted.
  absl::StatusOr<KeyPlan> PrepareDeleteKey(std::string_view key, std::optional<uint64_t> expected,
                                           absl::Time now) const;
  absl::StatusOr<KeyRecord> ResolveKey(std::string_view key) const;
  // Those with the prefix after `after`, at most `limit`, in order of name.
  std::vector<KeyRecord> ListKeys(std::string_view prefix, std::string_view after, size_t limit) const;
  // The last that were bound, the newest first, at most `limit`. Looks at every key.
  std::vector<const KeyRecord*> LastBound(size_t limit) const;
  // The artifacts of kind files that keys bind with these tensors now.
  std::vector<std::string> FilesBoundWith(std::string_view artifact_id) const;
  // How many versions of it are kept, the current one among them.
  uint32_t KeepOf(const KeyRecord& key) const;

  // What a node found when it looked at an origin: at its files, or at shared objects, where `origin` names
  // the node that looked. One that is gone stays so until that node publishes it again. Ignored when another
  // origin of that place is on record by now. REQUIRES: `finding` is not kSilent.
  void NoteOrigin(std::string_view artifact_id, const Origin& origin, OriginFinding finding,
                  std::string_view reason, SteadyTime now);
  // The node has just read its origin, whatever it found of it before.
  void RenewOrigin(std::string_view artifact_id, std::string_view node_id);

  // Null: there is none.
  const Artifact* Find(std::string_view artifact_id) const;
  // NOT_FOUND: there is none.
  absl::StatusOr<const Artifact*> Get(std::string_view artifact_id) const;
  const Artifacts& artifacts() const { return artifacts_; }
  // It has a tombstone.
  bool IsDeleted(std::string_view artifact_id) const { return tombstones_.contains(artifact_id); }
  bool IsReleased(std::string_view artifact_id) const { return released_.contains(artifact_id); }
  const std::set<std::string, std::less<>>& released() const { return released_; }
  uint64_t live_keys() const { return live_keys_; }
  const Differences& differences() const { return differences_; }
  uint64_t kept_differences() const { return kept_differences_; }
  uint64_t kept_difference_bytes() const { return kept_difference_bytes_; }  // of their images
  // The tombstone of a version that no key keeps any more.
  static ArtifactRecord ReleaseOf(const std::string& artifact_id, absl::Time now);
  // Why the last copy of it stays, and what a person can do; `copies` tells of copies that do not count.
  std::string WhyItStays(std::string_view artifact_id, std::string_view copies) const;

 private:
  friend class DirectoryInvariants;  // tests

  struct Tombstone {
    absl::Time deleted;
    bool versioned = false;  // it was released, not deleted by a person
  };

  // `artifact`: what the request names, which may not be known yet.
  absl::StatusOr<KeyRecord> PlanBinding(const BindRequest& request, const ArtifactRecord& artifact,
                                        absl::Time now) const;
  // What PlanBinding binds with the artifact. `before`: the key's binding, null where it has none.
  absl::StatusOr<std::string> FilesFor(const BindRequest& request, const ArtifactRecord& artifact,
                                       const KeyRecord* before) const;
  absl::Status CheckDifference(const ArtifactRecord& difference, const ArtifactRecord& artifact) const;
  // As far as they are known. `target`: where it is published with it; null: the one that is known, if any.
  absl::Status CheckEnds(const ArtifactRecord& difference, const ArtifactRecord* target) const;
  absl::StatusOr<const Artifact*> GetToDelete(std::string_view artifact_id) const;
  // The artifacts of its last versions, as many as differences are kept between, the current one first.
  std::vector<std::string> EndsOf(const KeyRecord& key) const;
  void HoldEnd(const std::string& artifact_id);
  void ReleaseEnd(const std::string& artifact_id);
  uint64_t CurrentRevision(std::string_view key) const;  // 0 when it is not bound
  void KeepLastVersions(KeyRecord& key) const;
  // Makes the artifacts that a key names and keeps know of it, or know of it no more.
  void LinkKey(const KeyRecord& key);
  void UnlinkKey(const KeyRecord& key);
  // After each change of what IsReleased says, and of the ends of a difference.
  void NoteReleased(const std::string& artifact_id);

  const Retention retention_;
  Artifacts artifacts_;
  absl::btree_map<std::string, Tombstone> tombstones_;  // by artifact id
  std::set<std::string, std::less<>> released_;         // artifact ids
  absl::btree_map<std::string, KeyRecord> keys_;        // deleted ones too
  uint64_t live_keys_ = 0;
  Differences differences_;
  uint64_t kept_differences_ = 0;
  uint64_t kept_difference_bytes_ = 0;
};

}  // namespace tensorcast::global_store
