// Converts facts to records and back. A record has a kind, a name within the kind, and bytes
// (fact_records.proto). All backends store records. Private to this folder. Pure functions. Errors: DATA_LOSS
// for a record that cannot be read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "global_store/metadata/metadata_store.h"

namespace tensorcast::global_store {

// SQLite stores the numbers of FactKind and Ageing (FORMAT.md): do not change them.
enum class FactKind : uint8_t { kArtifact, kKey, kNode, kTask, kCluster, kFollower, kAnnouncement };
inline constexpr FactKind kFactKinds[] = {FactKind::kArtifact,    FactKind::kKey,     FactKind::kNode,
                                          FactKind::kTask,        FactKind::kCluster, FactKind::kFollower,
                                          FactKind::kAnnouncement};
// Which of the PurgeTimes applies to a record.
enum class Ageing : uint8_t { kNever, kTombstone, kVersionTombstone, kEndedTask };
inline constexpr Ageing kAgeings[] = {Ageing::kTombstone, Ageing::kVersionTombstone, Ageing::kEndedTask};

absl::Time LimitOf(Ageing ageing, const PurgeTimes& before);

struct Fact {
  FactKind kind = FactKind::kArtifact;
  // For an artifact, a node or the cluster: its id. For a key: the key. For a task: "ARTIFACT/NODE/LOCATION".
  // For a follower: "LOCATION/LENGTH/NODE/KEY". For an announcement: "GROUP/KEY".
  std::string name;
  std::string record;
  Ageing ageing = Ageing::kNever;
  absl::Time updated;
  bool forgotten = false;  // true: the record is deleted instead of written

  // Whether the record is an artifact's tombstone. The backend keeps the record, and deletes the artifact's
  // manifest and tasks.
  bool DeletesArtifact() const { return kind == FactKind::kArtifact && ageing != Ageing::kNever; }
  bool IsOld(const PurgeTimes& before) const {
    return ageing != Ageing::kNever && updated < LimitOf(ageing, before);
  }
};

// The common prefix of the names of an artifact's tasks, including the last '/'.
std::string TaskPrefix(std::string_view artifact_id);

// The records of `facts`, sorted by kind, and within a kind in the order of `facts`.
std::vector<Fact> Encode(const DurableFacts& facts);
// Adds the fact of this record to `facts`.
absl::Status Decode(FactKind kind, std::string_view name, const std::string& record, DurableFacts& facts);

// The NOT_FOUND error of ReadManifest in all backends.
absl::Status NoManifest(std::string_view artifact_id);

}  // namespace tensorcast::global_store
