// Origins: the files that an artifact was imported from, and what their nodes found when they looked at them.
//
// A file can go or change behind everybody's back, so an origin is a copy only for a moment after its node
// found it intact. What was found is soft state: after a restart of the global store each is looked at again.
#include "absl/strings/str_cat.h"
#include "global_store/directory/directory.h"

namespace tensorcast::global_store {

std::vector<Origin> Directory::LiveOrigins(const ArtifactState& artifact) const {
  std::vector<Origin> live;
  for (const Origin& origin : artifact.record.origins) {
    if (nodes_.contains(origin.node_id)) live.push_back(origin);
  }
  return live;
}

void Directory::NoteOrigin(std::string_view artifact_id, const Origin& origin, OriginFinding finding,
                           std::string_view reason, absl::Time now) {
  if (finding == OriginFinding::kSilent) {
    if (auto node = nodes_.find(origin.node_id); node != nodes_.end()) node->second.silent_since = now;
    return;
  }
  auto artifact = artifacts_.find(artifact_id);
  if (artifact == artifacts_.end()) return;
  for (const Origin& known : artifact->second.record.origins) {
    if (known != origin) continue;
    OriginNote& note = artifact->second.origin_notes[origin.node_id];
    if (note.finding == OriginFinding::kGone) return;
    note = {.finding = finding, .reason = std::string(reason), .noted = now};
  }
}

void Directory::RenewOrigin(std::string_view artifact_id, std::string_view node_id) {
  auto artifact = artifacts_.find(artifact_id);
  if (artifact == artifacts_.end()) return;
  auto note = artifact->second.origin_notes.find(node_id);
  if (note != artifact->second.origin_notes.end()) artifact->second.origin_notes.erase(note);
}

Directory::OriginsAsCopies Directory::JudgeOrigins(std::string_view artifact_id, absl::Time now) const {
  OriginsAsCopies judged;
  auto artifact = artifacts_.find(artifact_id);
  if (artifact == artifacts_.end()) return judged;
  for (const Origin& origin : artifact->second.record.origins) {
    auto node = nodes_.find(origin.node_id);
    if (node == nodes_.end()) {
      absl::StrAppend(&judged.others, ", node ", origin.node_id, ", where it was imported, is away");
      continue;
    }
    const NodeFacts& facts = node->second.facts;
    auto note = artifact->second.origin_notes.find(origin.node_id);
    if (note != artifact->second.origin_notes.end()) {
      if (note->second.finding == OriginFinding::kGone) {
        absl::StrAppend(&judged.others, ", what node ", facts.name, " imported it from is gone (",
                        note->second.reason, ")");
        continue;
      }
      if (now - note->second.noted <= options_.origin_finding_age) {
        judged.intact = true;
        return judged;
      }
    }
    if (now - node->second.silent_since <= options_.origin_finding_age) {
      absl::StrAppend(&judged.others, ", node ", facts.name, ", where it was imported, does not answer");
      continue;
    }
    judged.unchecked.push_back(
        {.artifact_id = std::string(artifact_id), .origin = origin, .grpc_address = facts.grpc_address});
  }
  return judged;
}

}  // namespace tensorcast::global_store
