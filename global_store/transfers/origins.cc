// Origins: the files that an artifact was imported from, and what their nodes found when they looked at them.
//
// A file can go or change without a message, so an origin is a copy only for a moment after its node
// found it intact. What was found is soft state: after a restart of the global store each is looked at again.
// Nor is it one before its node has read the files once more and found every digest right: what was written
// during the import, or behind an mtime that was set back, shows only so. That is a durable fact of these
// files. Files that may be written without a trace are never a copy.
//
// Where no other node has the bytes, an intact origin serves other nodes, too: its node is asked to make a
// replica of it, once for all receivers, and they wait for that.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "core/replica/transfer_report.h"
#include "global_store/directory/directory.h"
#include "global_store/scheduler/scheduler.h"

namespace tensorcast::global_store {
namespace {

constexpr absl::Duration kLongestReading = absl::Hours(1);
// From the end of a reading until its replica was reported.
constexpr absl::Duration kOriginReportTime = absl::Seconds(5);
// Before a node that could not read its files (no room for them, perhaps) is asked to again.
constexpr absl::Duration kPauseAfterFailure = absl::Seconds(5);
constexpr absl::Duration kAskAgain = absl::Milliseconds(250);

}  // namespace

bool SameFiles(const Origin& a, const Origin& b) {
  return a.node_id == b.node_id && a.files == b.files && a.untraceable == b.untraceable;
}

std::vector<Origin> Directory::LiveOrigins(const ArtifactState& artifact) const {
  std::vector<Origin> live;
  for (const Origin& origin : artifact.record.origins) {
    if (nodes_.contains(origin.node_id)) live.push_back(origin);
  }
  return live;
}

void Directory::NoteOrigin(std::string_view artifact_id, const Origin& origin, OriginFinding finding,
                           std::string_view reason, SteadyTime now) {
  // Says nothing of the files, only that its node is not to be asked again for a while.
  if (finding == OriginFinding::kSilent) {
    if (auto node = nodes_.find(origin.node_id); node != nodes_.end()) node->second.silent_since = now;
    return;
  }
  auto artifact = artifacts_.find(artifact_id);
  if (artifact == artifacts_.end()) return;
  for (const Origin& known : artifact->second.record.origins) {
    if (!SameFiles(known, origin)) continue;
    OriginNote& note = artifact->second.origin_notes[origin.node_id];
    // Gone is final until the origin is published again: a file that was put back need not be what was
    // imported.
    if (note.finding == OriginFinding::kGone) return;
    note = {.finding = finding, .reason = std::string(reason), .noted = now};
  }
}

bool Directory::IsGone(const ArtifactState& artifact, const Origin& origin) {
  const auto note = artifact.origin_notes.find(origin.node_id);
  return note != artifact.origin_notes.end() && note->second.finding == OriginFinding::kGone;
}

bool Directory::ReadsOwnFiles(const GrantRequest& request) {
  return request.required_lane.empty() || request.required_lane == kDiskLane;
}

void Directory::RenewOrigin(std::string_view artifact_id, std::string_view node_id) {
  auto artifact = artifacts_.find(artifact_id);
  if (artifact == artifacts_.end()) return;
  auto note = artifact->second.origin_notes.find(node_id);
  if (note != artifact->second.origin_notes.end()) artifact->second.origin_notes.erase(note);
}

void Directory::NoteReading(const OriginToCheck& origin, const absl::Status& read, SteadyTime now) {
  auto artifact = artifacts_.find(origin.artifact_id);
  if (artifact == artifacts_.end()) return;
  artifact->second.readings[origin.origin.node_id] = {
      .error = std::string(read.message()),
      .until = now + (read.ok() ? kOriginReportTime : kPauseAfterFailure)};
}

const Directory::HeldReplica* Directory::FindInMemory(std::string_view artifact_id,
                                                      const NodeState& node) const {
  const HeldReplica* found = nullptr;
  ForEachReplica(artifact_id, [&](const NodeState& holder, const HeldReplica& held) {
    const bool in_memory = held.facts.location.kind == LocationKind::kCpu;
    if (&holder == &node && in_memory && held.facts.state == ReplicaState::kReady) found = &held;
    return found == nullptr;
  });
  return found;
}

std::vector<std::string> Directory::OfferOrigins(const GrantRequest& request, const NodeState& receiver,
                                                 const SourceQuery& query, SteadyTime now,
                                                 GrantOffer& offer) {
  ArtifactState& artifact = artifacts_.find(request.artifact_id)->second;
  const auto note_of = [&](const Origin& origin) -> const OriginNote* {
    const auto note = artifact.origin_notes.find(origin.node_id);
    return note == artifact.origin_notes.end() ? nullptr : &note->second;
  };
  const std::string& receiver_id = receiver.facts.node_id;
  const auto own = std::ranges::find(artifact.record.origins, receiver_id, &Origin::node_id);
  if (ReadsOwnFiles(request) && own != artifact.record.origins.end() && !IsGone(artifact, *own)) {
    // It reads them itself, unless they turn out to be gone, which matters where another node has some, too.
    const OriginNote* note = note_of(*own);
    const bool known = note != nullptr && now - note->noted <= options_.origin_finding_age;
    const bool silent = now - receiver.silent_since <= options_.origin_finding_age;
    if (offer.origins.size() > 1 && !known && !silent && !receiver.unreachable) {
      offer.origin_to_check = {request.artifact_id, *own, receiver.facts.grpc_address};
    }
    return {};
  }
  for (const Origin& origin : offer.origins) {
    const NodeState& node = nodes_.find(origin.node_id)->second;
    const SourceCandidate candidate{.replica_id = "", .end = &node.end};
    if (origin.node_id == receiver_id || node.unreachable || IsGone(artifact, origin)) continue;
    if (!CanUse(query, candidate)) continue;
    // One that it holds in memory is what it would answer with.
    const HeldReplica* held = FindInMemory(request.artifact_id, node);
    if (held != nullptr && !held->evicting) continue;
    // It asked for leave to evict it and may have done so: in a moment it is offered again or gone.
    if (held != nullptr) {
      offer.waiting_for = {absl::StrCat("a replica that ", node.facts.name, " may be about to evict")};
      offer.retry_after = kAskAgain;
      return {origin.node_id};
    }
    // Under way (`until` ahead, no error), failed a moment ago (with the error), or neither.
    OriginReading& reading = artifact.readings[origin.node_id];
    if (reading.until > now && !reading.error.empty()) {
      offer.waiting_for.push_back(absl::StrCat("the files that ", node.facts.name,
                                               " imported, which it could not read (", reading.error, ")"));
      continue;
    }
    // The first that asks starts the reading, once for all; the others are told to wait for it.
    if (reading.until <= now) {
      reading = {.error = "", .until = now + kLongestReading};
      offer.origin_to_read = {request.artifact_id, origin, node.facts.grpc_address};
    }
    // The files are its own way to the bytes, whatever it was told to wait for before.
    EndWaiting(request.artifact_id, origin.node_id);
    // It may have begun to pull from the receiver, when that one had a source: nothing comes that way now.
    RootSearch search{.receiver = &receiver, .now = now};
    if (!IsRooted(node, request.artifact_id, search)) {
      std::vector<std::string> in_vain;
      for (const Grant* grant : node.receiving) {
        if (grant->artifact_id == request.artifact_id) in_vain.push_back(grant->grant_id);
      }
      EndGrants(in_vain, GrantEnd::kRevoked, now);
    }
    offer.waiting_for = {absl::StrCat("the files that ", node.facts.name, " imported, which it reads")};
    offer.retry_after = kAskAgain;
    return {origin.node_id};
  }
  return {};
}

std::string Directory::DescribeComparison(const ArtifactState& artifact, const Origin& origin,
                                          std::string_view how_far) {
  const std::string& name = artifact.keys.empty() ? artifact.record.artifact_id : *artifact.keys.begin();
  return absl::StrCat("the comparison of origin ", origin.files.front().path, " of ", name,
                      " before its replica may go: ", how_far);
}

// Those that were found intact lately, as their nodes say. Those not looked at yet are named, for the
// caller to ask their nodes with no lock held, and to come here again.
Directory::OriginsAsCopies Directory::JudgeOrigins(std::string_view artifact_id, SteadyTime now) const {
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
    if (origin.untraceable) {
      absl::StrAppend(
          &judged.others, ", what node ", facts.name,
          " imported it from does not count, since its file system shows no trace of some writes");
      continue;
    }
    auto note = artifact->second.origin_notes.find(origin.node_id);
    if (note != artifact->second.origin_notes.end()) {
      if (note->second.finding == OriginFinding::kGone) {
        absl::StrAppend(&judged.others, ", what node ", facts.name, " imported it from is gone (",
                        note->second.reason, ")");
        continue;
      }
      if (now - note->second.noted <= options_.origin_finding_age) {
        if (note->second.finding == OriginFinding::kUnclear) {
          absl::StrAppend(&judged.others, ", node ", facts.name, ", where it was imported, could not look (",
                          note->second.reason, ")");
          continue;
        }
        if (note->second.finding == OriginFinding::kComparing) {
          judged.comparing = DescribeComparison(artifact->second, origin, note->second.reason);
          absl::StrAppend(&judged.others, ", awaited is ", judged.comparing);
        } else if (!origin.compared) {
          const std::string& why = note->second.reason;
          absl::StrAppend(&judged.others, ", node ", facts.name, " has not compared what it imported it from",
                          why.empty() ? "" : absl::StrCat(" (", why, ")"));
        } else {
          judged.intact.push_back(&origin);
        }
        continue;
      }
    }
    if (node->second.unreachable || now - node->second.silent_since <= options_.origin_finding_age) {
      absl::StrAppend(&judged.others, ", node ", facts.name, ", where it was imported, does not answer");
      continue;
    }
    judged.unchecked.push_back(
        {.artifact_id = std::string(artifact_id), .origin = origin, .grpc_address = facts.grpc_address});
  }
  return judged;
}

}  // namespace tensorcast::global_store
