// Grants: permissions to pull. Each is given once, renewed by its receiver's heartbeats, and ends exactly
// once.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "global_store/directory/directory.h"
#include "global_store/scheduler/scheduler.h"

namespace tensorcast::global_store {
namespace {

// A token outlives its grant where a receiver queues before it opens the pull, but never by more than this.
constexpr absl::Duration kMaxTokenAge = absl::Hours(1);

bool Names(const std::vector<std::string>& ids, const std::string& id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

std::string WhyNoSource(size_t elsewhere, size_t usable, std::string_view required_lane) {
  if (elsewhere == 0) return "no other node has a replica";
  if (usable == 0) {
    return absl::StrCat(
        "of ", elsewhere,
        " replicas elsewhere none is ready, intact and untried on a node that can be reached");
  }
  const std::string lane = required_lane.empty() ? "any lane" : absl::StrCat("the lane ", required_lane);
  return absl::StrCat("none of the ", usable, " nodes with a replica shares ", lane, " with this one");
}

}  // namespace

LaneEnd Directory::EndOf(const NodeFacts& facts) {
  return {.host_id = facts.host_id,
          .handle_socket = facts.handle_socket,
          .lanes = facts.lanes,
          .has_devices = !facts.devices.empty()};
}

std::string_view GrantEndName(GrantEnd end) {
  switch (end) {
    case GrantEnd::kSucceeded:
      return "succeeded";
    case GrantEnd::kFailed:
      return "failed";
    case GrantEnd::kCancelled:
      return "cancelled";
    case GrantEnd::kExpired:
      return "expired";
    case GrantEnd::kRevoked:
      return "revoked";
  }
  return "unknown";
}

absl::StatusOr<GrantOffer> Directory::RequestGrant(const GrantRequest& request, SteadyTime now) {
  TC_ASSIGN_OR_RETURN(NodeState * receiver, FindLive(request.receiver));
  auto artifact = artifacts_.find(request.artifact_id);
  if (artifact == artifacts_.end()) {
    return absl::NotFoundError(absl::StrCat("there is no artifact ", request.artifact_id));
  }
  // Believed at once: the receiver compared the bytes with the manifest. Others are not given that replica
  // either.
  for (const std::string& replica_id : request.corrupt_replicas) MarkCorrupt(replica_id);

  GrantOffer offer;
  offer.origins = LiveOrigins(artifact->second);
  size_t elsewhere = 0;
  std::vector<SourceCandidate> candidates;
  ForEachReplica(request.artifact_id, [&](const NodeState& node, const HeldReplica& held) {
    if (&node == receiver) return true;
    ++elsewhere;
    const std::string& id = held.facts.id;
    if (node.unreachable || !held.IsSource() || Names(request.excluded_replicas, id)) return true;
    candidates.push_back({.replica_id = id,
                          .end = EndOf(node.facts),
                          .place = held.facts.location.kind,
                          .slow = Names(request.slow_replicas, id),
                          .draining = node.draining,
                          .active_grants = node.serving});
    return true;
  });
  const SourceQuery query{.receiver = EndOf(receiver->facts),
                          .destination = request.destination.kind,
                          .required_lane = request.required_lane,
                          .soft_grants_per_source = options_.soft_grants_per_source};
  const std::optional<SourceChoice> choice = ChooseSource(query, candidates);
  if (!choice.has_value()) {
    offer.no_source_reason = absl::StrCat(WhyNoSource(elsewhere, candidates.size(), request.required_lane),
                                          JudgeOrigins(request.artifact_id, now).others);
    // Its own node is about to read the files of the import: others that ask meanwhile are told to wait for
    // it.
    const bool fills_itself =
        ReadsOwnFiles(request) && std::ranges::any_of(offer.origins, [&](const Origin& origin) {
          return origin.node_id == request.receiver.node_id;
        });
    if (fills_itself && FindDestination(request, *receiver) == nullptr) NoteBeginning(request, now);
    OfferToWait(request, *receiver, query, elsewhere, now, offer);
    return offer;
  }
  const std::string& replica_id = candidates[choice->candidate].replica_id;
  NodeState& source = nodes_.find(node_of_replica_.find(replica_id)->second)->second;
  Grant grant{.grant_id = secrets_->NewGrantId(),
              .artifact_id = request.artifact_id,
              .replica_id = replica_id,
              .source_node = source.facts.node_id,
              .receiver_node = request.receiver.node_id,
              .lane = choice->lane,
              .issued = now,
              .expires = now + options_.grant_ttl,
              .token_expires = now - source.grant_key_given +
                               std::clamp(request.timeout, options_.grant_ttl,
                                          std::max(options_.grant_ttl, kMaxTokenAge))};
  // Counted from here, not from the pull, so that many who ask at one moment are spread over the sources.
  ++source.serving;
  if (HeldReplica* filling = FindDestination(request, *receiver)) {
    filling->waits = 0;
  } else {
    NoteBeginning(request, now);
  }
  offer.granted = Granted(grant, now);
  grants_[grant.grant_id] = std::move(grant);
  return offer;
}

OfferedGrant Directory::Granted(const Grant& grant, SteadyTime now) const {
  // A grant ends before its source or its replica goes, so both are here.
  const NodeState& source = nodes_.find(grant.source_node)->second;
  return OfferedGrant{.grant = grant,
                      .source = ViewOf(source, now),
                      .replica = source.replicas.find(grant.replica_id)->second.facts,
                      .source_key = source.grant_key,
                      .ttl = options_.grant_ttl};
}

std::optional<GrantOffer> Directory::RepeatOffer(std::string_view grant_id, SteadyTime now) const {
  auto grant = grants_.find(grant_id);
  if (grant == grants_.end()) return std::nullopt;
  auto artifact = artifacts_.find(grant->second.artifact_id);  // it ends before its artifact, too
  return GrantOffer{.granted = Granted(grant->second, now),
                    .no_source_reason = "",
                    .origins = LiveOrigins(artifact->second)};
}

const Grant* Directory::FindGrant(std::string_view grant_id) const {
  auto grant = grants_.find(grant_id);
  return grant == grants_.end() ? nullptr : &grant->second;
}

absl::Status Directory::CompleteGrant(const NodeIdentity& receiver, std::string_view grant_id, GrantEnd end,
                                      bool source_corrupt, SteadyTime now) {
  // A node that the global store has just forgotten (it was restarted, the node expired) may still complete:
  // only a successor of the receiver makes it void.
  absl::Status identity = CheckIdentity(receiver);
  if (absl::IsAborted(identity)) return identity;
  auto grant = grants_.find(grant_id);
  if (grant == grants_.end()) return absl::OkStatus();
  if (grant->second.receiver_node != receiver.node_id) {
    return absl::PermissionDeniedError(absl::StrCat("grant ", grant_id, " was given to node ",
                                                    grant->second.receiver_node, ", not to ",
                                                    receiver.node_id));
  }
  if (source_corrupt) MarkCorrupt(grant->second.replica_id);
  // The source is told although the receiver closes the pull itself: that call may be lost.
  TellRevoked(grant->second.source_node, grant->first, now);
  EndGrant(grant, end);
  return absl::OkStatus();
}

void Directory::EndGrant(absl::btree_map<std::string, Grant>::iterator grant, GrantEnd end) {
  if (auto source = nodes_.find(grant->second.source_node); source != nodes_.end()) --source->second.serving;
  ended_.push_back({.grant = std::move(grant->second), .end = end});
  grants_.erase(grant);
}

void Directory::EndGrantsIf(const std::function<bool(const Grant&)>& predicate, GrantEnd end,
                            SteadyTime now) {
  std::vector<std::string> ending;
  for (const auto& [grant_id, grant] : grants_) {
    if (predicate(grant)) ending.push_back(grant_id);
  }
  for (const std::string& grant_id : ending) {
    auto grant = grants_.find(grant_id);
    TellRevoked(grant->second.source_node, grant_id, now);
    TellRevoked(grant->second.receiver_node, grant_id, now);
    EndGrant(grant, end);
  }
}

// Repeated in each heartbeat for a while, since an answer can be lost; both ends take it any number of times.
void Directory::TellRevoked(const std::string& node_id, const std::string& grant_id, SteadyTime now) {
  auto node = nodes_.find(node_id);
  if (node != nodes_.end()) node->second.revoked[grant_id] = now + options_.node_ttl;
}

}  // namespace tensorcast::global_store
