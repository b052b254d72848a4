#include "global_store/transfers/transfers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "global_store/inventory/origin_copies.h"
#include "global_store/scheduler/link_rates.h"

namespace tensorcast::global_store {
namespace {

// A transfer with a replica that was not reported yet looks again after so long.
constexpr absl::Duration kLookUnreported = absl::Seconds(2);

// A node without a label for its rate looks so often, whatever it has: each look says how fast it receives,
// and shows which of its sources are slow.
constexpr uint32_t kMeasuringLooks = 4;

std::string WhyNoSource(size_t elsewhere, size_t usable, std::string_view required_lane) {
  if (elsewhere == 0) return "no other node has a replica";
  if (usable == 0) {
    return absl::StrCat("each replica on other nodes (", elsewhere, elsewhere == 1 ? " replica" : " replicas",
                        ") is incomplete, is corrupt, failed before, or is on a node that cannot be reached");
  }
  const std::string lane = required_lane.empty()
                               ? "no lane connects"
                               : absl::StrCat("the lane ", required_lane, " does not connect");
  return absl::StrCat(lane, " this node with the nodes that have ", usable,
                      usable == 1 ? " replica" : " replicas");
}

// Whether the receiver is about to read files of its own node, which the offer names.
bool FillsItself(const Catalog::Artifact& artifact, const GrantRequest& request, const GrantOffer& offer) {
  return request.ReadsOwnFiles() && std::ranges::any_of(offer.origins, [&](const Origin& origin) {
           return !IsShared(origin) && origin.node_id == request.receiver.node_id && !artifact.IsGone(origin);
         });
}

RolloutNode RolloutNodeOf(const Node& node) { return {.id = node.facts.node_id, .name = node.facts.name}; }

}  // namespace

std::vector<Origin> Transfers::LiveOrigins(const Catalog::Artifact& artifact) const {
  std::vector<Origin> live;
  for (const Origin& origin : artifact.record.origins) {
    if (IsShared(origin) || nodes_.Find(origin.node_id) != nullptr) live.push_back(origin);
  }
  return live;
}

// One request for sources. First the facts that the receiver reports are recorded: corrupt replicas and its
// rate. Then the scheduler chooses among a sample of replicas, and a shared origin may be offered beside
// them. A receiver that gets neither is told what to wait for. What the receiver was told to wait for before
// ends in every case, since it has asked again.
absl::StatusOr<GrantOffer> Transfers::RequestGrant(const GrantRequest& request, SteadyTime now) {
  TC_ASSIGN_OR_RETURN(const Node* receiver, nodes_.FindLive(request.receiver));
  TC_ASSIGN_OR_RETURN(const Catalog::Artifact* artifact, catalog_.Get(request.artifact_id));
  // Only replicas that the receiver holds a grant of can be accused: an accusation needs a pull.
  for (const Grant* grant : grants_.Of(request.receiver.node_id).receiving) {
    const HeldReplica& replica = *inventory_.Find(grant->source_node, grant->replica_id);
    if (Names(request.corrupt_replicas, replica.facts)) {
      accusations_.Note({grant->source_node, grant->replica_id}, *receiver, now);
    }
  }
  if (request.received_mbit > 0) {
    nodes_.NoteRate(request.receiver.node_id, request.received_mbit, now);
    grants_.Reweigh(request.receiver.node_id);
  }
  Asking asking{.request = request,
                .receiver = *receiver,
                .artifact = *artifact,
                .query = QueryOf(request, *receiver, artifact->record),
                .now = now};
  // What its node has begun may end; what it has not begun does not begin.
  const bool begins = request.held_grants.empty() && request.held_origin.empty() &&
                      request.excluded_replicas.empty() && request.slow_replicas.empty();
  if (receiver->draining && begins) return RefuseDraining(asking);
  rollouts_.NoteAsked(request.artifact_id, RolloutNodeOf(*receiver), begins, now);

  GrantOffer offer;
  offer.origins = LiveOrigins(*artifact);
  const std::optional<Mate> mate = FindPullingMate(asking);
  const Candidates candidates = FindCandidates(asking);
  asking.query.zone_role = RoleInZone(asking, candidates);
  // A receiver that takes the place of a puller holds sources in its zone. None of them leads to the bytes,
  // so they do not count: with one source across, the whole zone would have one upload slot's share of a
  // link.
  if (asking.query.zone_role == ZoneRole::kPuller && asking.query.has_source) {
    asking.query.wanted = request.sources;
  }
  for (const SourceChoice& choice :
       ChooseSources(asking.query, candidates.candidates, options_.source_rules)) {
    const SourceRef& source = candidates.sources[choice.candidate];
    const LaneEnd& end = source.node->end;
    const bool left_to_mate =
        mate && (mate->of_host ? !SameHost(receiver->end, end) : IsAcrossZones(receiver->end, end));
    // The mate pulls for the whole host or zone. Sources in the receiver's own host or zone are granted all
    // the same.
    if (left_to_mate) continue;
    const Grant& grant = grants_.Give(request, *source.node, source.replica->facts.id, choice.lane, now);
    rollouts_.NoteGiven(request.artifact_id, request.receiver.node_id, RolloutNodeOf(*source.node),
                        choice.lane);
    offer.granted.push_back(Offer(grant, now));
  }
  OfferShared(asking, offer);
  const bool offered = !offer.granted.empty() || offer.shared.has_value();
  if (asking.query.has_source || offered) offer.look_again = LookAgain(asking);
  waits_.End(request.artifact_id, request.receiver.node_id);
  if (offered) {
    if (HeldReplica* filling = FindDestination(request)) {
      filling->hostmates.End();
    } else {
      waits_.NoteFills(request.artifact_id, request.receiver.node_id, now);
    }
    return offer;
  }
  if (mate.has_value() && !asking.query.has_source) {
    offer.no_source_reason =
        absl::StrCat("node ", mate->name, " in the same ", mate->of_host ? "host" : "zone",
                     " has just begun to pull the artifact");
    offer.waiting_for = {absl::StrCat("the replica that begins to fill on node ", mate->name)};
    offer.retry_after = mate->retry_after;
  } else {
    OfferOther(asking, candidates, offer);
  }
  // A receiver with partial replicas goes on with those while it waits.
  const bool waits = offer.retry_after > absl::ZeroDuration();
  if (!request.held_grants.empty() && waits) offer.look_again = offer.retry_after;
  return offer;
}

void Transfers::OfferOther(const Asking& asking, const Candidates& candidates, GrantOffer& offer) {
  const GrantRequest& request = asking.request;
  offer.no_source_reason =
      absl::StrCat(WhyNoSource(candidates.elsewhere, candidates.sources.size(), request.required_lane),
                   JudgeOrigins(catalog_, nodes_, request.artifact_id, request.receiver.node_id,
                                origin_finding_age_, asking.now)
                       .others);
  if (asking.query.has_source) {
    // Its sources give nothing, so that a node which reads its files sooner may be the better one.
    if (asking.query.stalls) OfferOrigins(asking, offer);
    return;
  }
  // Its own node is about to read the files of the import: others that ask meanwhile are told to wait for it.
  const bool fills_itself = FillsItself(asking.artifact, request, offer);
  if (fills_itself && FindDestination(request) == nullptr) {
    waits_.NoteFills(request.artifact_id, request.receiver.node_id, asking.now);
  }
  OfferToWait(asking, candidates.elsewhere, offer);
  // Whatever it was offered, it reads its own files first.
  if (fills_itself) waits_.End(request.artifact_id, request.receiver.node_id);
}

// Files that its own node imported are offered all the same: another node may wait for it to read them.
GrantOffer Transfers::RefuseDraining(const Asking& asking) {
  const GrantRequest& request = asking.request;
  waits_.End(request.artifact_id, request.receiver.node_id);
  GrantOffer offer;
  offer.origins = LiveOrigins(asking.artifact);
  if (FillsItself(asking.artifact, request, offer) && FindDestination(request) == nullptr) {
    waits_.NoteFills(request.artifact_id, request.receiver.node_id, asking.now);
  }
  const std::string& name = asking.receiver.facts.name;
  offer.no_source_reason =
      absl::StrCat("node ", name, " is draining, and a draining node begins no transfers");
  offer.waiting_for = {
      absl::StrCat("the end of the drain of node ", name, " (`tensorcast node undrain ", name, "`)")};
  return offer;
}

absl::Duration Transfers::LookAgain(const Asking& asking) {
  const GrantRequest& request = asking.request;
  const LaneEnd& receiver = asking.receiver.end;
  // Counts all grants of the transfer, those of this answer included. As in QueryOf, a source over a slow
  // link leaves room for another one.
  uint32_t has = 0;
  uint32_t slow = 0;
  for (const Grant* grant : grants_.Of(request.receiver.node_id).receiving) {
    if (grant->artifact_id != request.artifact_id) continue;
    ++has;
    slow += HasSlowLink(receiver, nodes_.Find(grant->source_node)->end) ? 1 : 0;
  }
  HeldReplica* filling = FindDestination(request);
  const bool measures =
      receiver.link_mbit == 0 && filling != nullptr && filling->looks.looks() < kMeasuringLooks;
  if (has >= request.sources + std::min(slow, kMaxSlowLinks) && !measures) return absl::InfiniteDuration();
  if (filling != nullptr) return filling->looks.Next();
  // Its replica was not reported yet, which is the exception and does not last.
  return request.held_grants.empty() ? LookSchedule::kFirstPause : kLookUnreported;
}

OfferedGrant Transfers::Offer(const Grant& grant, SteadyTime now) const {
  // A grant ends before its source or its replica goes, so both are here.
  const Node& source = *nodes_.Find(grant.source_node);
  return OfferedGrant{.grant = grant,
                      .source = source.View(now),
                      .replica = inventory_.Find(grant.source_node, grant.replica_id)->facts,
                      .source_key = source.grant_key,
                      .ttl = grants_.Ttl(),
                      .share = grant.share % options_.soft_grants_per_source,
                      .shares = options_.soft_grants_per_source};
}

std::optional<GrantOffer> Transfers::RepeatOffer(std::string_view grant_id, SteadyTime now) const {
  const Grant* grant = grants_.Find(grant_id);
  if (grant == nullptr) return std::nullopt;
  return GrantOffer{.granted = {Offer(*grant, now)},
                    // The first answer may have had more: the next request brings that.
                    .look_again = LookSchedule::kFirstPause,
                    .no_source_reason = "",
                    // It ends before its artifact, too.
                    .origins = LiveOrigins(*catalog_.Find(grant->artifact_id))};
}

absl::Status Transfers::CompleteGrant(const NodeIdentity& receiver, std::string_view grant_id, GrantEnd end,
                                      bool source_corrupt, SteadyTime now, const GrantReceipt& receipt) {
  // A node that the global store has just forgotten (it was restarted, the node expired) may still complete:
  // only a successor of the receiver makes it void.
  absl::Status identity = nodes_.CheckIdentity(receiver);
  if (absl::IsAborted(identity)) return identity;
  const Grant* grant = grants_.Find(grant_id);
  if (grant == nullptr) return absl::OkStatus();
  if (grant->receiver_node != receiver.node_id) {
    return absl::PermissionDeniedError(absl::StrCat(
        "permission denied: grant ", grant_id, " was given to node ", grant->receiver_node, ", not to node ",
        receiver.node_id, "; complete a transfer from the node that received the grant"));
  }
  if (const Node* node = nodes_.Find(receiver.node_id); node != nullptr && source_corrupt) {
    accusations_.Note({grant->source_node, grant->replica_id}, *node, now);
  } else if (node != nullptr && end == GrantEnd::kSucceeded) {
    accusations_.NoteRead({grant->source_node, grant->replica_id}, *node);
  }
  if (const Node* source = nodes_.Find(grant->source_node)) {
    rollouts_.NoteCompleted(grant->artifact_id, receiver.node_id, RolloutNodeOf(*source), grant->lane,
                            receipt, end == GrantEnd::kSucceeded, now);
  }
  const std::string artifact_id = grant->artifact_id;
  const Location destination = grant->destination;
  grants_.Complete(grant_id, end, now);
  // A difference is always brought whole, so it is there with the last of its grants: its node need not
  // report it. Else, or where that is wrong, the node's report says what is there.
  const bool whole = end == GrantEnd::kSucceeded && catalog_.differences().Find(artifact_id) != nullptr;
  const auto of_it = [&](const Grant* other) { return other->artifact_id == artifact_id; };
  if (!whole || std::ranges::any_of(grants_.Of(receiver.node_id).receiving, of_it)) return absl::OkStatus();
  if (const HeldReplica* filling = inventory_.FindFilling(artifact_id, receiver.node_id, destination)) {
    inventory_.Change({receiver.node_id, std::string(filling->facts.id)}, [](HeldReplica& replica) {
      replica.facts.state = ReplicaState::kReady;
      replica.facts.chunks_present = replica.facts.chunks_total;
    });
  }
  return absl::OkStatus();
}

void Transfers::NoteReading(const OriginToCheck& origin, const absl::Status& read, SteadyTime now) {
  if (catalog_.Find(origin.artifact_id) == nullptr) return;
  waits_.NoteReading(origin.artifact_id, origin.origin.node_id, read, now);
}

void Transfers::NoteReported(const std::string& node_id, const InventoryChange& change, SteadyTime now) {
  for (const std::string& artifact_id : change.artifacts) waits_.NoteReported(artifact_id, node_id);
  if (change.gone.empty()) return;
  const absl::flat_hash_set<std::string_view> gone(change.gone.begin(), change.gone.end());
  std::vector<std::string> ending;
  for (const Grant* grant : grants_.Of(node_id).serving) {
    if (gone.contains(grant->replica_id)) ending.push_back(grant->grant_id);
  }
  grants_.EndAll(ending, GrantEnd::kRevoked, now);
}

void Transfers::EndOfArtifact(const std::string& artifact_id, SteadyTime now) {
  grants_.EndOfArtifact(artifact_id, now);
  waits_.ForgetReadings(artifact_id);
}

void Transfers::Tick(SteadyTime now) {
  grants_.Tick(now);
  waits_.Tick(now);
}

}  // namespace tensorcast::global_store
