// The catalog: which artifacts exist, which keys name and keep them, which artifacts were deleted, the
// differences between them, and the files that they were imported from. All of these are durable facts,
// except the nodes' findings about the files.
//
// Durable facts change in two steps: `Prepare...` checks and returns the new facts, and `Apply` applies them
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

// INVALID_ARGUMENT for an invalid key name.
absl::Status CheckKeyName(std::string_view key);

class Catalog {
 public:
  struct OriginNote {
    OriginFinding finding = OriginFinding::kIntact;  // never kSilent, which is about the node
    std::string reason;                              // why the origin is gone, or the progress of a
                                                     // comparison
    SteadyTime noted;
  };
  struct Artifact {
    ArtifactRecord record;
    std::set<std::string> keys;
    std::set<std::string> kept_by;  // keys that keep it as an earlier version
    // The findings about the origins in `record`, by place and by the node that checked.
    std::map<std::pair<std::string, std::string>, OriginNote> origin_notes;

    bool kept_difference = false;  // this is a difference, and is kept (differences.h)

    // Whether a key names or keeps the artifact, or the artifact is a kept difference.
    bool IsWanted() const { return !keys.empty() || !kept_by.empty() || kept_difference; }
    // Whether the artifact was a version of keys and is not wanted now.
    bool IsReleased() const { return record.versioned && !IsWanted(); }
    // The last finding of the node that `origin` names; null: the node has not checked.
    const OriginNote* NoteOf(const Origin& origin) const;
    bool IsGone(const Origin& origin) const;
  };
  using Artifacts = absl::btree_map<std::string, Artifact>;  // by id

  explicit Catalog(Retention retention) : retention_(std::move(retention)) {}

  void Apply(const ArtifactRecord& record);
  void Apply(const KeyRecord& record);
  // Forgets tombstones of artifacts and keys older than `before`, as the metadata store's Purge does.
  // `versions` is the limit for the tombstones of released versions.
  void Purge(absl::Time before, absl::Time versions);
  // The time, at least `oldest`, before which tombstones of versions have to be purged so that at most
  // kMaxVersionTombstones remain.
  absl::Time VersionTombstonesFrom(absl::Time oldest) const;

  // Plans a publication: the record of `artifact`, with its origins merged into the known ones. `bind`, if
  // any, binds a key to the artifact, with the errors of PrepareBindKey. Removes the artifact's tombstone.
  // `difference`, if any, must make this artifact: INVALID_ARGUMENT if it makes another one,
  // FAILED_PRECONDITION if its base is missing. INVALID_ARGUMENT also for any difference between artifacts
  // that are not of kind tensors.
  absl::StatusOr<PublishPlan> PreparePublish(
      const ArtifactRecord& artifact, const std::optional<BindRequest>& bind, absl::Time now,
      const std::optional<ArtifactRecord>& difference = std::nullopt) const;
  // Plans to record that the node of `origin` compared these files with the artifact. FAILED_PRECONDITION if
  // no such origin is on record.
  absl::StatusOr<PublishPlan> PrepareCompared(const std::string& artifact_id, const Origin& origin) const;
  // FAILED_PRECONDITION, naming the keys, while a key is bound to the artifact. Keys that keep the artifact
  // as an earlier version lose that version. Differences from and to the artifact are deleted too.
  absl::StatusOr<DurableFacts> PrepareDeleteArtifact(std::string_view artifact_id, absl::Time now) const;
  // If the artifact has too many differences for one change, plans to delete a part of them; otherwise
  // returns no facts. Call this before PrepareDeleteArtifact; the errors are the same. Each part can be
  // committed separately, since a difference only saves bytes.
  absl::StatusOr<DurableFacts> PrepareDeleteManyDifferences(std::string_view artifact_id,
                                                            absl::Time now) const;
  // Plans to delete a difference that makes wrong bytes. NOT_FOUND if no difference has this id.
  absl::StatusOr<DurableFacts> PrepareDeleteDifference(const std::string& artifact_id, absl::Time now) const;

  // FAILED_PRECONDITION, naming the current revision, when `expected` differs from it (0: must not exist).
  // INVALID_ARGUMENT if the artifact is not of kind tensors, or its files are not of kind files. NOT_FOUND if
  // either does not exist.
  absl::StatusOr<KeyPlan> PrepareBindKey(const BindRequest& request, absl::Time now) const;
  // The artifact that the key names stays until an operator deletes it. The earlier versions that the key
  // kept are released. Files that only this key binds are deleted.
  absl::StatusOr<KeyPlan> PrepareDeleteKey(std::string_view key, std::optional<uint64_t> expected,
                                           absl::Time now) const;
  absl::StatusOr<KeyRecord> ResolveKey(std::string_view key) const;
  // The keys with the prefix after `after`, at most `limit`, sorted by name.
  std::vector<KeyRecord> ListKeys(std::string_view prefix, std::string_view after, size_t limit) const;
  // The keys bound last, newest first, at most `limit`. Visits every key.
  std::vector<const KeyRecord*> LastBound(size_t limit) const;
  // The artifacts of kind files that keys bind with these tensors now.
  std::vector<std::string> FilesBoundWith(std::string_view artifact_id) const;
  // The number of versions that the key keeps, including the current one.
  uint32_t KeepOf(const KeyRecord& key) const;

  // Records what a node found when it checked an origin: the node's own files, or shared objects. For shared
  // objects, `origin` names the node that checked. An origin that is found gone stays gone until that node
  // publishes it again. Does nothing if the record of that place has another origin by now. REQUIRES:
  // `finding` is not kSilent.
  void NoteOrigin(std::string_view artifact_id, const Origin& origin, OriginFinding finding,
                  std::string_view reason, SteadyTime now);
  // Call this when the node has just read its origin: discards the node's earlier finding.
  void RenewOrigin(std::string_view artifact_id, std::string_view node_id);

  // Null: the artifact does not exist.
  const Artifact* Find(std::string_view artifact_id) const;
  // NOT_FOUND: the artifact does not exist.
  absl::StatusOr<const Artifact*> Get(std::string_view artifact_id) const;
  const Artifacts& artifacts() const { return artifacts_; }
  // Whether the artifact has a tombstone.
  bool IsDeleted(std::string_view artifact_id) const { return tombstones_.contains(artifact_id); }
  bool IsReleased(std::string_view artifact_id) const { return released_.contains(artifact_id); }
  const std::set<std::string, std::less<>>& released() const { return released_; }
  uint64_t live_keys() const { return live_keys_; }
  const Differences& differences() const { return differences_; }
  uint64_t kept_differences() const { return kept_differences_; }
  uint64_t kept_difference_bytes() const { return kept_difference_bytes_; }  // of their images
  // The tombstone for a version that no key keeps now.
  static ArtifactRecord ReleaseOf(const std::string& artifact_id, absl::Time now);
  // A text for people: why the last copy of the artifact may not be evicted, and what to do. `copies` lists
  // the copies that do not count.
  std::string WhyItStays(std::string_view artifact_id, std::string_view copies) const;

 private:
  friend class DirectoryInvariants;  // tests

  struct Tombstone {
    absl::Time deleted;
    bool versioned = false;  // the version was released, not deleted by an operator
  };

  // `artifact`: the artifact in the request, which may be unknown yet.
  absl::StatusOr<KeyRecord> PlanBinding(const BindRequest& request, const ArtifactRecord& artifact,
                                        absl::Time now) const;
  // The files that PlanBinding binds with the artifact. `before`: the key's previous binding, null if it has
  // none.
  absl::StatusOr<std::string> FilesFor(const BindRequest& request, const ArtifactRecord& artifact,
                                       const KeyRecord* before) const;
  absl::Status CheckDifference(const ArtifactRecord& difference, const ArtifactRecord& artifact) const;
  // Checks the ends of a difference as far as they are known. `target`: the artifact published with it; null:
  // the known one, if any.
  absl::Status CheckEnds(const ArtifactRecord& difference, const ArtifactRecord* target) const;
  absl::StatusOr<const Artifact*> GetToDelete(std::string_view artifact_id) const;
  // The artifacts of the key's last versions, the current one first; Retention::difference_versions of them.
  std::vector<std::string> EndsOf(const KeyRecord& key) const;
  void HoldEnd(const std::string& artifact_id);
  void ReleaseEnd(const std::string& artifact_id);
  uint64_t CurrentRevision(std::string_view key) const;  // 0 when it is not bound
  void KeepLastVersions(KeyRecord& key) const;
  // Adds or removes the key at the artifacts that it names and keeps.
  void LinkKey(const KeyRecord& key);
  void UnlinkKey(const KeyRecord& key);
  // Called after each change of IsReleased, and of the ends of a difference.
  void NoteReleased(const std::string& artifact_id);

  const Retention retention_;
  Artifacts artifacts_;
  absl::btree_map<std::string, Tombstone> tombstones_;  // by artifact id
  std::set<std::string, std::less<>> released_;         // artifact ids
  absl::btree_map<std::string, KeyRecord> keys_;        // including deleted keys
  uint64_t live_keys_ = 0;
  Differences differences_;
  uint64_t kept_differences_ = 0;
  uint64_t kept_difference_bytes_ = 0;
};

}  // namespace tensorcast::global_store
