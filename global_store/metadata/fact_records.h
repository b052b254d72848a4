// Facts as records: a kind, a name in it and bytes (fact_records.proto), as every backend keeps them. Private
// to this folder. Pure functions. Errors: DATA_LOSS for a record that cannot be read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "global_store/metadata/metadata_store.h"

namespace tensorcast::global_store {

// SQLite keeps the numbers of both (FORMAT.md).
enum class FactKind : uint8_t { kArtifact, kKey, kNode, kTask, kCluster, kFollower, kAnnouncement };
inline constexpr FactKind kFactKinds[] = {FactKind::kArtifact,    FactKind::kKey,     FactKind::kNode,
                                          FactKind::kTask,        FactKind::kCluster, FactKind::kFollower,
                                          FactKind::kAnnouncement};
// Which of PurgeTimes ends it.
enum class Ageing : uint8_t { kNever, kTombstone, kVersionTombstone, kEndedTask };
inline constexpr Ageing kAgeings[] = {Ageing::kTombstone, Ageing::kVersionTombstone, Ageing::kEndedTask};

absl::Time LimitOf(Ageing ageing, const PurgeTimes& before);

struct Fact {
  FactKind kind = FactKind::kArtifact;
  // An artifact's or node's id, a key, "ARTIFACT/NODE/LOCATION" of a task, the cluster's id,
  // "LOCATION/LENGTH/NODE/KEY" of a follower, "GROUP/KEY" of an announcement.
  std::string name;
  std::string record;
  Ageing ageing = Ageing::kNever;
  absl::Time updated;
  bool forgotten = false;  // dropped instead of written

  // The record stays as a tombstone; the artifact's manifest and tasks go.
  bool DeletesArtifact() const { return kind == FactKind::kArtifact && ageing != Ageing::kNever; }
  bool IsOld(const PurgeTimes& before) const {
    return ageing != Ageing::kNever && updated < LimitOf(ageing, before);
  }
};

// With which the names of an artifact's tasks begin; it ends in '/'.
std::string TaskPrefix(std::string_view artifact_id);

// In the order of kinds, and in each as they stand there.
std::vector<Fact> Encode(const DurableFacts& facts);
// Adds the fact to `facts`.
absl::Status Decode(FactKind kind, std::string_view name, const std::string& record, DurableFacts& facts);

// NOT_FOUND, as each backend says it.
absl::Status NoManifest(std::string_view artifact_id);

}  // namespace tensorcast::global_store
