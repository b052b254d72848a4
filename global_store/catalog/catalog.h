// The catalog: artifacts, their origins, keys, tombstones of deleted artifacts, and differences. All of these
// are durable facts, except the nodes' findings about origins.
//
// A durable change has two steps. `Prepare...` checks the request and returns the new facts. After the caller
// has committed these facts, `Apply` changes the catalog. REQUIRES between the two steps: no other change of
// the same facts.
//
// Owns its state. Thread-compatible.
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
    OriginFinding finding = OriginFinding::kIntact;  // never kSilent
    std::string reason;                              // why the origin is gone, or the progress of a
                                                     // comparison
    SteadyTime noted;
  };
  struct Artifact {
    ArtifactRecord record;
    std::set<std::string> keys;
    std::set<std::string> kept_by;  // keys that keep the artifact as an earlier version
    // The findings about the origins in `record`, by place and by the node that checked.
    std::map<std::pair<std::string, std::string>, OriginNote> origin_notes;

    bool kept_difference = false;  // the artifact is a kept difference (differences.h)

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
  // Forgets deleted keys, and tombstones of artifacts, from before the time `before`. For tombstones of
  // released versions, the time `versions` counts instead.
  void Purge(absl::Time before, absl::Time versions);
  // The time to pass to Purge as `versions`, so that at most kMaxVersionTombstones remain; min: `oldest`.
  absl::Time VersionTombstonesFrom(absl::Time oldest) const;

  // Plans a publication: adds the origins of `artifact` to the known origins, and removes the artifact's
  // tombstone. `bind`, if set, binds a key to the artifact, with the errors of PrepareBindKey. `difference`,
  // if set, must make this artifact. INVALID_ARGUMENT: `difference` is not a difference to `artifact`; its
  // ends are equal or not of kind tensors. FAILED_PRECONDITION: the base of `difference` is missing.
  absl::StatusOr<PublishPlan> PreparePublish(
      const ArtifactRecord& artifact, const std::optional<BindRequest>& bind, absl::Time now,
      const std::optional<ArtifactRecord>& difference = std::nullopt) const;
  // Plans to mark the files of `origin` as compared with the artifact. FAILED_PRECONDITION: the artifact or
  // this origin is not on record.
  absl::StatusOr<PublishPlan> PrepareCompared(const std::string& artifact_id, const Origin& origin) const;
  // Plans to delete the artifact, and the differences from and to it. Keys that keep the artifact as an
  // earlier version lose that version. FAILED_PRECONDITION: a key is bound to the artifact; the error names
  // the keys. NOT_FOUND: the artifact does not exist.
  absl::StatusOr<DurableFacts> PrepareDeleteArtifact(std::string_view artifact_id, absl::Time now) const;
  // Plans to delete some of the artifact's differences, if one change cannot delete all of them; otherwise
  // returns no facts. Commit and call again until no facts are returned, then call PrepareDeleteArtifact. The
  // errors are those of PrepareDeleteArtifact.
  absl::StatusOr<DurableFacts> PrepareDeleteManyDifferences(std::string_view artifact_id,
                                                            absl::Time now) const;
  // Plans to delete a difference. NOT_FOUND: no difference has this id.
  absl::StatusOr<DurableFacts> PrepareDeleteDifference(const std::string& artifact_id, absl::Time now) const;

  // FAILED_PRECONDITION: the key is not at revision `request.expected`; the error names the current revision.
  // INVALID_ARGUMENT: the key's name or `keep` is invalid, the artifact is not of kind tensors, or its files
  // are not of kind files. NOT_FOUND: the artifact or its files do not exist.
  absl::StatusOr<KeyPlan> PrepareBindKey(const BindRequest& request, absl::Time now) const;
  // Plans to delete the key, and the files that only this key binds. Releases the earlier versions of the
  // key. The artifact that the key names stays until an operator deletes it.
  absl::StatusOr<KeyPlan> PrepareDeleteKey(std::string_view key, std::optional<uint64_t> expected,
                                           absl::Time now) const;
  absl::StatusOr<KeyRecord> ResolveKey(std::string_view key) const;
  // At most `limit` keys that begin with `prefix` and come after `after`, sorted by name.
  std::vector<KeyRecord> ListKeys(std::string_view prefix, std::string_view after, size_t limit) const;
  // The keys bound last, newest first, at most `limit`. Visits every key.
  std::vector<const KeyRecord*> LastBound(size_t limit) const;
  // The ids of the artifacts of kind files that keys bind with this artifact now.
  std::vector<std::string> FilesBoundWith(std::string_view artifact_id) const;
  // The number of versions that the key keeps, including the current one.
  uint32_t KeepOf(const KeyRecord& key) const;

  // Records the finding of the node that checked the origin: node `origin.node_id`. After kGone, the origin
  // stays gone until that node publishes it again. Does nothing if the artifact now has another origin at
  // this place. REQUIRES: `finding` is not kSilent.
  void NoteOrigin(std::string_view artifact_id, const Origin& origin, OriginFinding finding,
                  std::string_view reason, SteadyTime now);
  // Discards the node's earlier finding. Call this when the node has just read its origin.
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
  uint64_t kept_difference_bytes() const { return kept_difference_bytes_; }  // size of their images
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

  // `artifact`: the artifact of the request, which may be new to the catalog.
  absl::StatusOr<KeyRecord> PlanBinding(const BindRequest& request, const ArtifactRecord& artifact,
                                        absl::Time now) const;
  // The files that PlanBinding binds with the artifact. `before`: the key's previous binding; null: none.
  absl::StatusOr<std::string> FilesFor(const BindRequest& request, const ArtifactRecord& artifact,
                                       const KeyRecord* before) const;
  absl::Status CheckDifference(const ArtifactRecord& difference, const ArtifactRecord& artifact) const;
  // Checks the known ends (base and target) of a difference. `target`: the artifact that is published with
  // the difference; null: look the target up.
  absl::Status CheckEnds(const ArtifactRecord& difference, const ArtifactRecord* target) const;
  absl::StatusOr<const Artifact*> GetToDelete(std::string_view artifact_id) const;
  // The ids of the key's last Retention::difference_versions versions, newest first.
  std::vector<std::string> EndsOf(const KeyRecord& key) const;
  void HoldEnd(const std::string& artifact_id);
  void ReleaseEnd(const std::string& artifact_id);
  uint64_t CurrentRevision(std::string_view key) const;  // 0: the key is not bound
  void KeepLastVersions(KeyRecord& key) const;
  // Add or remove the key at the artifacts that the key names and keeps.
  void LinkKey(const KeyRecord& key);
  void UnlinkKey(const KeyRecord& key);
  // Call this after each change of IsReleased, or of the ends of a difference.
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
