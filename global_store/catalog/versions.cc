// Versions that no key keeps any more. Their artifacts may go with their last copy: when a node asks to evict
// that, or once no node has one. Deleting the artifact comes before the consent, and is a durable change, so
// a key that is bound to it at the same time either keeps it or finds that it is gone.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "global_store/directory/directory.h"

namespace tensorcast::global_store {
namespace {

// In one change, of which a metadata store takes so many operations.
constexpr size_t kReleasesAtOnce = 100;

ArtifactRecord TombstoneOf(const std::string& artifact_id, absl::Time now) {
  return {.artifact_id = artifact_id, .deleted = true, .updated = now, .versioned = true};
}

}  // namespace

void Directory::NoteReleased(const std::string& artifact_id) {
  auto artifact = artifacts_.find(artifact_id);
  if (artifact != artifacts_.end() && IsReleased(artifact->second)) {
    released_.insert(artifact_id);
  } else {
    released_.erase(artifact_id);
  }
}

// Replicas in any state hold it: one that fills may be the next copy. So does a node that is away with one:
// it is told to forget it only when it is given up.
std::vector<std::string> Directory::ReleasedWithoutReplica(SteadyTime now, size_t limit) const {
  std::vector<std::string> found;
  if (now < releases_from_) return found;  // the nodes that were here before the start have not reported yet
  for (const std::string& artifact_id : released_) {
    if (found.size() == limit) break;
    if (!holders_.contains(artifact_id) && NodesAwayWith(artifact_id, now).empty()) {
      found.push_back(artifact_id);
    }
  }
  return found;
}

DurableFacts Directory::PrepareReleases(SteadyTime now, absl::Time wall_now) const {
  DurableFacts facts;
  for (const std::string& artifact_id : ReleasedWithoutReplica(now, kReleasesAtOnce)) {
    facts.artifacts.push_back(TombstoneOf(artifact_id, wall_now));
  }
  return facts;
}

DurableFacts Directory::PrepareReleaseOf(const ReplicaName& name, const Proofs& proofs,
                                         absl::Time now) const {
  DurableFacts facts;
  const auto node = nodes_.find(name.node_id);
  if (node == nodes_.end()) return facts;
  const auto held = node->second.replicas.find(name.replica_id);
  if (held == node->second.replicas.end()) return facts;
  const HeldReplica& replica = held->second;
  if (!IsReleased(replica.facts.artifact_id)) return facts;
  // Where another copy is left, or may be, the artifact stays for as long as that does.
  const Copies copies = FindCopies(node->second, replica, proofs);
  if (copies.counted || !copies.to_prove.empty()) return facts;
  facts.artifacts.push_back(TombstoneOf(replica.facts.artifact_id, now));
  return facts;
}

absl::Time Directory::VersionTombstonesFrom(absl::Time oldest) const {
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
std::string Directory::WhyItStays(std::string_view artifact_id, std::string_view origins) const {
  const auto artifact = artifacts_.find(artifact_id);
  if (artifact == artifacts_.end()) return "it is the last copy of an artifact that is not published yet";
  const ArtifactState& state = artifact->second;
  if (!state.keys.empty()) {
    const std::string& key = *state.keys.begin();
    return absl::StrCat("it is the last copy of what key ", key, " names", origins,
                        "; replicate it, pack it to disk, or delete it with `tensorcast rm ", key, "`");
  }
  if (!state.kept_by.empty()) {
    const KeyRecord& key = keys_.find(*state.kept_by.begin())->second;
    return absl::StrCat("it is the last copy of an earlier version of key ", key.name, ", which keeps ",
                        KeepOf(key), " versions", origins,
                        "; keep fewer with `tensorcast put --keep`, or delete it with `tensorcast rm`");
  }
  return absl::StrCat("it is the last copy of an artifact that no key names", origins,
                      "; bind a key to it, or delete it with `tensorcast gc --older-than 0s`");
}

}  // namespace tensorcast::global_store
