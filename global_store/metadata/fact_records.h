// Facts as records: a kind, a name within the kind, and bytes (fact_records.proto). All backends store facts
// in this form. Private to this folder. Pure functions. Errors: DATA_LOSS for a record that cannot be read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "global_store/metadata/metadata_store.h"

namespace tensorcast::global_store {

// SQLite stores the numbers of FactKind and Ageing (FORMAT.md).
enum class FactKind : uint8_t { kArtifact, kKey, kNode, kTask, kCluster, kFollower, kAnnouncement };
inline constexpr FactKind kFactKinds[] = {FactKind::kArtifact,    FactKind::kKey,     FactKind::kNode,
                                          FactKind::kTask,        FactKind::kCluster, FactKind::kFollower,
                                          FactKind::kAnnouncement};
// Which of the PurgeTimes applies.
enum class Ageing : uint8_t { kNever, kTombstone, kVersionTombstone, kEndedTask };
inline constexpr Ageing kAgeings[] = {Ageing::kTombstone, Ageing::kVersionTombstone, Ageing::kEndedTask};

absl::Time LimitOf(Ageing ageing, const PurgeTimes& before);

struct Fact {
  FactKind kind = FactKind::kArtifact;
  // The id of an artifact, node or cluster, a key, "ARTIFACT/NODE/LOCATION" for a task,
  // "LOCATION/LENGTH/NODE/KEY" for a follower, "GROUP/KEY" for an announcement.
  std::string name;
  std::string record;
  Ageing ageing = Ageing::kNever;
  absl::Time updated;
  bool forgotten = false;  // true: the record is deleted instead of written

  // Whether the record is an artifact's tombstone. The record stays, and the artifact's manifest and tasks
  // are deleted.
  bool DeletesArtifact() const { return kind == FactKind::kArtifact && ageing != Ageing::kNever; }
  bool IsOld(const PurgeTimes& before) const {
    return ageing != Ageing::kNever && updated < LimitOf(ageing, before);
  }
};

// The prefix of the names of an artifact's tasks; it ends in '/'.
std::string TaskPrefix(std::string_view artifact_id);

// Sorted by kind, and within a kind in the order of `facts`.
std::vector<Fact> Encode(const DurableFacts& facts);
// Adds the fact to `facts`.
absl::Status Decode(FactKind kind, std::string_view name, const std::string& record, DurableFacts& facts);

// The NOT_FOUND error of ReadManifest in all backends.
absl::Status NoManifest(std::string_view artifact_id);

}  // namespace tensorcast::global_store
