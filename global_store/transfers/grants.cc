// Grants: permissions to pull. Each is given once, renewed by its receiver's heartbeats, and ends exactly
// once.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "global_store/directory/directory.h"
#include "global_store/scheduler/scheduler.h"

namespace tensorcast::global_store {
namespace {

// A token outlives its grant where a receiver queues before it opens the pull, but never by more than this.
constexpr absl::Duration kMaxTokenAge = absl::Hours(1);

// Of each scope and kind so many sources are looked at: with an upload slot free, without, and at all.
constexpr size_t kSample = 16;
constexpr size_t kSampleOfFull = 4;
constexpr size_t kMaxVisited = 128;
// Of many holders in rows of so many, at equal distances in the order by `Spread`. One long row would do to
// the slots what linear probing does to a hash table: a receiver at the end of full nodes takes the
// next ones, so that those grow together until a receiver sees only full ones while a fifth of all slots is
// free.
constexpr size_t kRow = 16;
constexpr uint64_t kToNextRow = std::numeric_limits<uint64_t>::max() / (kMaxVisited / kRow);
// And so many nodes on the way from a replica that fills to one that is ready.
constexpr size_t kFarthest = 48;

// So many sources a transfer is given at first, of those that are there; the others when it looks again, when
// those that came after it are there too and need not all be fed by those that came before.
constexpr uint32_t kFirstSources = 2;

// A transfer that has fewer sources than it wants asks again so often, the first time after so long.
constexpr uint32_t kMaxLooks = 6;
constexpr absl::Duration kFirstLook = absl::Milliseconds(100);
constexpr double kLookFactor = 2.2;
constexpr absl::Duration kLookUnreported = absl::Seconds(2);

// A node that a receiver overtook comes after others for so long, and for twice as long the next time.
constexpr absl::Duration kFirstRest = absl::Seconds(10);
constexpr absl::Duration kLongestRest = absl::Minutes(5);

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

struct Directory::Candidates {
  std::vector<SourceCandidate> candidates;
  std::vector<SourceRef> sources;  // of the same indices
  size_t elsewhere = 0;            // replicas on other nodes, of any state
};

std::string_view GrantEndName(GrantEnd end) {
  switch (end) {
    case GrantEnd::kSucceeded:
      return "succeeded";
    case GrantEnd::kFailed:
      return "failed";
    case GrantEnd::kCancelled:
      return "cancelled";
    case GrantEnd::kOvertaken:
      return "overtaken";
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
  for (const Grant* grant : receiver->receiving) {
    const NodeState& source = nodes_.find(grant->source_node)->second;
    const HeldReplica& replica = source.replicas.find(grant->replica_id)->second;
    if (Names(request.corrupt_replicas, replica.facts)) NoteAccusation(*grant, now);
  }

  // What its node has begun may end; what it has not begun does not begin.
  const bool begins =
      request.held_grants.empty() && request.excluded_replicas.empty() && request.slow_replicas.empty();
  if (receiver->draining && begins) return RefuseDraining(artifact->second, request, *receiver, now);

  SourceQuery query{.receiver = &receiver->end,
                    .destination = request.destination.kind,
                    .required_lane = request.required_lane,
                    .upload_slots = options_.soft_grants_per_source,
                    .filling_lanes = options_.filling_lanes,
                    .wanted = request.sources};
  bool moves = false;  // one of its sources at least
  for (const std::string& grant_id : request.held_grants) {
    const Grant* grant = FindGrant(grant_id);
    if (grant == nullptr || grant->receiver_node != request.receiver.node_id) continue;
    const NodeState& source = nodes_.find(grant->source_node)->second;
    const HeldReplica& replica = source.replicas.find(grant->replica_id)->second;
    moves |= !Names(request.slow_replicas, replica.facts);
    // It has what it has, and a receiver that has nothing else needs a source yet.
    if (replica.IsPartial()) continue;
    query.has_source = true;
    const bool slow_link = HasSlowLink(receiver->end, source.end);
    query.has_fast_source |= !slow_link;
    query.slow_links += slow_link ? 1 : 0;
    query.has_source_on_host |=
        !Names(request.slow_replicas, replica.facts) && SameHost(receiver->end, source.end);
  }
  query.stalls = query.has_source && !moves;
  if (!query.has_source) query.wanted = std::min(request.sources, kFirstSources);
  GrantOffer offer;
  offer.origins = LiveOrigins(artifact->second);
  const std::optional<HostmatePulls> hostmate = FindPullingHostmate(request, *receiver, query, now);
  const Candidates candidates = FindCandidates(request, *receiver, query, now);
  for (const SourceChoice& choice : ChooseSources(query, candidates.candidates)) {
    const SourceRef& source = candidates.sources[choice.candidate];
    if (hostmate.has_value() && !SameHost(receiver->end, source.node->end)) continue;
    offer.granted.push_back(Give(request, *receiver, source, choice.lane, now));
  }
  if (query.has_source || !offer.granted.empty()) offer.look_again = LookAgain(request, *receiver);
  EndWaiting(request.artifact_id, request.receiver.node_id);
  if (!offer.granted.empty()) {
    if (HeldReplica* filling = FindDestination(request, *receiver)) {
      filling->hostmates_until = SteadyTime::InfiniteFuture();
    } else {
      NoteBeginning(request, now);
    }
    return offer;
  }
  // A receiver with partial replicas goes on with those while it waits.
  const auto wait = [&](absl::Duration retry_after) {
    offer.retry_after = retry_after;
    const bool pulls = !request.held_grants.empty() && retry_after > absl::ZeroDuration();
    if (pulls) offer.look_again = retry_after;
  };
  if (hostmate.has_value() && !query.has_source) {
    offer.no_source_reason = absl::StrCat(hostmate->name, ", of the same host, has just begun to pull it");
    offer.waiting_for = {absl::StrCat("the replica that begins to fill at ", hostmate->name)};
    wait(hostmate->retry_after);
    return offer;
  }
  const size_t elsewhere = candidates.elsewhere;
  offer.no_source_reason =
      absl::StrCat(WhyNoSource(elsewhere, candidates.sources.size(), request.required_lane),
                   JudgeOrigins(request.artifact_id, now).others);
  if (query.has_source) {
    // Its sources give nothing, so that a node which reads its files sooner may be the better one.
    if (query.stalls) {
      OfferOrigins(request, *receiver, query, now, offer);
      wait(offer.retry_after);
    }
    return offer;
  }
  // Its own node is about to read the files of the import: others that ask meanwhile are told to wait for it.
  const bool fills_itself = FillsItself(artifact->second, request, offer);
  if (fills_itself && FindDestination(request, *receiver) == nullptr) NoteBeginning(request, now);
  OfferToWait(request, *receiver, query, elsewhere, now, offer);
  // Whatever it was offered, it reads its own files first.
  if (fills_itself) EndWaiting(request.artifact_id, request.receiver.node_id);
  wait(offer.retry_after);
  return offer;
}

bool Directory::FillsItself(const ArtifactState& artifact, const GrantRequest& request,
                            const GrantOffer& offer) {
  return ReadsOwnFiles(request) && std::ranges::any_of(offer.origins, [&](const Origin& origin) {
           return origin.node_id == request.receiver.node_id && !IsGone(artifact, origin);
         });
}

// Files that its own node imported are offered all the same: another node may wait for it to read them.
GrantOffer Directory::RefuseDraining(const ArtifactState& artifact, const GrantRequest& request,
                                     NodeState& receiver, SteadyTime now) {
  EndWaiting(request.artifact_id, request.receiver.node_id);
  GrantOffer offer;
  offer.origins = LiveOrigins(artifact);
  if (FillsItself(artifact, request, offer) && FindDestination(request, receiver) == nullptr) {
    NoteBeginning(request, now);
  }
  const std::string& name = receiver.facts.name;
  offer.no_source_reason = absl::StrCat("node ", name, " drains, and a draining node begins no transfers");
  offer.waiting_for = {
      absl::StrCat("the end of the drain of node ", name, " (`tensorcast node undrain ", name, "`)")};
  return offer;
}

uint32_t Directory::UploadsOf(const NodeState& node, const std::string& artifact_id) {
  const auto uploads = node.uploads.find(artifact_id);
  return uploads == node.uploads.end() ? 0 : uploads->second;
}

// From the nearest scope to the widest, of each a few, in rows from places that depend on the receiver and on
// how often it asked. Where none of all those can be used, and only then, all are visited: what is odd
// about this receiver (its lanes, what it tried already) may leave it few.
Directory::Candidates Directory::FindCandidates(const GrantRequest& request, const NodeState& receiver,
                                                const SourceQuery& query, SteadyTime now) const {
  Candidates found;
  std::set<const HeldReplica*> seen;
  // The receiver's host brings nothing just now, so neither does a hostmate that it does not hold yet, unless
  // that one has just begun to pull for the host.
  bool host_stalls = false;
  for (const std::string& grant_id : request.held_grants) {
    const Grant* grant = FindGrant(grant_id);
    if (grant == nullptr) continue;
    const NodeState& source = nodes_.find(grant->source_node)->second;
    const HeldReplica& replica = source.replicas.find(grant->replica_id)->second;
    seen.insert(&replica);
    host_stalls |= Names(request.slow_replicas, replica.facts) && SameHost(receiver.end, source.end);
  }
  uint32_t looks = 0;
  AddReplicasOf(request.artifact_id, request.receiver.node_id,
                [&looks](const SourceRef& own) { looks += own.replica->looks; });
  const std::string salt = absl::StrCat(request.receiver.node_id, "/", looks, "/", request.held_grants.size(),
                                        "/", request.excluded_replicas.size() + request.slow_replicas.size());
  const uint64_t from = Spread(salt);
  size_t usable = 0;
  RootSearch search{.receiver = &receiver, .now = now};
  auto add = [&](const SourceRef& source) {
    const std::string& id = source.replica->facts.id;
    if (!source.replica->CanServe()) return;
    if (source.node == &receiver || source.node->unreachable) return;
    if (Names(request.excluded_replicas, source.replica->facts) || !seen.insert(source.replica).second) {
      return;
    }
    const bool filling = !source.replica->IsSource();
    const bool stalls = host_stalls && filling && SameHost(receiver.end, source.node->end) &&
                        !HasTurn(*source.node, request.artifact_id, now);
    SourceCandidate candidate{.replica_id = id,
                              .end = &source.node->end,
                              .place = source.replica->facts.location.kind,
                              .filling = filling,
                              .partial = source.replica->IsPartial(),
                              .slow = stalls || Names(request.slow_replicas, source.replica->facts),
                              .draining = source.node->draining,
                              .overtaken = now < source.node->overtaken_until,
                              .uploads = UploadsOf(*source.node, request.artifact_id),
                              .active_grants = static_cast<uint32_t>(source.node->serving.size()),
                              .tie = Spread(id) - from};
    if (filling) {
      search.seen.clear();
      candidate.rooted = !candidate.partial && IsRooted(*source.node, request.artifact_id, search);
      // Without a root it can give what it has, once.
      const bool has_some = source.replica->facts.chunks_present > 0;
      if (!candidate.rooted && (candidate.slow || !has_some)) return;
    }
    usable += CanUse(query, candidate) ? 1 : 0;
    found.candidates.push_back(candidate);
    found.sources.push_back(source);
  };
  // Those with an upload slot free, and a few others for when there are none such.
  auto sample = [&](const SourceSet& sources) {
    auto next = sources.end();
    size_t free = 0;
    size_t full = 0;
    for (size_t i = 0; i < std::min(kMaxVisited, sources.size()) && free < kSample; ++i, ++next) {
      if (i == 0 || (i % kRow == 0 && sources.size() > kMaxVisited)) {
        next = sources.lower_bound({from + i / kRow * kToNextRow, ""});
      }
      if (next == sources.end()) next = sources.begin();
      const uint32_t uploads = UploadsOf(*next->second.node, request.artifact_id);
      size_t& of_kind = uploads < options_.soft_grants_per_source ? free : full;
      if (&of_kind == &full && full == kSampleOfFull) continue;
      ++of_kind;
      add(next->second);
    }
  };
  auto all = [&](const SourceSet& sources) {
    for (const auto& [key, source] : sources) add(source);
  };
  if (auto host = nodes_of_host_.find(receiver.end.host_id); host != nodes_of_host_.end()) {
    for (const std::string& node_id : host->second) AddReplicasOf(request.artifact_id, node_id, add);
  }
  for (const std::string& scope : ScopesOf(request.artifact_id, receiver.end)) {
    const auto sources = sources_.find(scope);
    if (sources == sources_.end()) continue;
    sample(sources->second.ready);
    if (!query.filling_lanes.empty()) sample(sources->second.filling);
  }
  if (const auto sources = sources_.find(request.artifact_id); usable == 0 && sources != sources_.end()) {
    all(sources->second.ready);
    if (!query.filling_lanes.empty()) all(sources->second.filling);
  }
  auto holders = holders_.find(request.artifact_id);
  found.elsewhere = holders == holders_.end() ? 0 : holders->second.size();
  AddReplicasOf(request.artifact_id, request.receiver.node_id, [&](const SourceRef&) { --found.elsewhere; });
  return found;
}

// Depth first along the grants, oldest first: the first of a node lead to those that began before it. A
// search that has seen kFarthest nodes is over: a node that cannot be told from one that leads nowhere comes
// last, which harms none among so many.
bool Directory::IsRooted(const NodeState& node, std::string_view artifact_id, RootSearch& search) const {
  if (search.rooted.contains(&node)) return true;
  if (search.seen.size() == kFarthest || !search.seen.insert(&node).second) return false;
  bool pulls = false;
  bool rooted = false;
  for (const Grant* grant : node.receiving) {
    if (grant->artifact_id != artifact_id) continue;
    pulls = true;
    const NodeState& source = nodes_.find(grant->source_node)->second;
    if (&source == search.receiver) continue;
    const HeldReplica& replica = source.replicas.find(grant->replica_id)->second;
    rooted = replica.IsSource() || (!replica.IsPartial() && IsRooted(source, artifact_id, search));
    if (rooted) break;
  }
  if (!pulls) rooted = LeadsOn(node, artifact_id, search);
  if (rooted) search.rooted.insert(&node);
  return rooted;
}

// It has its own way to the bytes, unless it was told to wait: then one of those that it waits for has to
// lead to them.
bool Directory::LeadsOn(const NodeState& node, std::string_view artifact_id, RootSearch& search) const {
  const Waiting* waiting = FindWaiting(artifact_id, node.facts.node_id, search.now);
  if (waiting == nullptr) return HasOwnWay(artifact_id, node, search.now);
  return waiting->reports || std::ranges::any_of(waiting->nodes, [&](const std::string& node_id) {
           const auto found = nodes_.find(node_id);
           if (found == nodes_.end() || &found->second == search.receiver) return false;
           return IsRooted(found->second, artifact_id, search);
         });
}

OfferedGrant Directory::Give(const GrantRequest& request, NodeState& receiver, const SourceRef& source,
                             std::string lane, SteadyTime now) {
  NodeState& node = *source.node;
  const absl::Duration token_age =
      std::clamp(request.timeout, options_.grant_ttl, std::max(options_.grant_ttl, kMaxTokenAge));
  uint32_t share = 0;
  while (std::ranges::any_of(node.serving, [&](const Grant* grant) {
    return grant->replica_id == source.replica->facts.id && grant->share == share;
  })) {
    ++share;
  }
  const std::string grant_id = secrets_->NewGrantId();
  Grant& grant = grants_[grant_id] = {.grant_id = grant_id,
                                      .artifact_id = request.artifact_id,
                                      .replica_id = source.replica->facts.id,
                                      .source_node = node.facts.node_id,
                                      .receiver_node = request.receiver.node_id,
                                      .destination = request.destination,
                                      .lane = std::move(lane),
                                      .issued = now,
                                      .expires = now + GrantTtl(),
                                      .token_expires = now - node.grant_key_given + token_age,
                                      .share = share};
  // Counted from here, not from the pull, so that many that ask at one moment are spread over the sources.
  node.serving.push_back(&grant);
  ++node.uploads[request.artifact_id];
  receiver.receiving.push_back(&grant);
  return Granted(grant, now);
}

// The pause doubles, so that few messages see a transfer through that has to wait long for others to come.
absl::Duration Directory::LookAgain(const GrantRequest& request, NodeState& receiver) {
  const auto has = static_cast<size_t>(std::ranges::count_if(
      receiver.receiving, [&](const Grant* grant) { return grant->artifact_id == request.artifact_id; }));
  if (has >= request.held_grants.size() + request.sources) return absl::InfiniteDuration();
  HeldReplica* filling = FindDestination(request, receiver);
  // Its replica was not reported yet, which is the exception and does not last.
  if (filling == nullptr) return request.held_grants.empty() ? kFirstLook : kLookUnreported;
  if (filling->looks == kMaxLooks) return absl::InfiniteDuration();
  return kFirstLook * std::pow(kLookFactor, filling->looks++);
}

OfferedGrant Directory::Granted(const Grant& grant, SteadyTime now) const {
  // A grant ends before its source or its replica goes, so both are here.
  const NodeState& source = nodes_.find(grant.source_node)->second;
  return OfferedGrant{.grant = grant,
                      .source = ViewOf(source, now),
                      .replica = source.replicas.find(grant.replica_id)->second.facts,
                      .source_key = source.grant_key,
                      .ttl = GrantTtl(),
                      .share = grant.share % options_.soft_grants_per_source,
                      .shares = options_.soft_grants_per_source};
}

std::optional<GrantOffer> Directory::RepeatOffer(std::string_view grant_id, SteadyTime now) const {
  auto grant = grants_.find(grant_id);
  if (grant == grants_.end()) return std::nullopt;
  auto artifact = artifacts_.find(grant->second.artifact_id);  // it ends before its artifact, too
  return GrantOffer{.granted = {Granted(grant->second, now)},
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
  if (source_corrupt && nodes_.contains(receiver.node_id)) NoteAccusation(grant->second, now);
  NoteServing(nodes_.find(grant->second.source_node)->second, end, now);
  // The source is told although the receiver closes the pull itself: that call may be lost.
  TellRevoked(grant->second.source_node, grant->first, now);
  EndGrant(grant->first, end);
  return absl::OkStatus();
}

// One receiver's word only orders sources, for a while: it may be the receiver that lies, or its own link
// that hangs.
void Directory::NoteServing(NodeState& source, GrantEnd end, SteadyTime now) {
  if (end == GrantEnd::kSucceeded) source.overtaken_rest = absl::ZeroDuration();
  // Several receivers at one moment learn of one fault.
  if (end != GrantEnd::kOvertaken || now < source.overtaken_until) return;
  source.overtaken_rest = std::clamp(source.overtaken_rest * 2, kFirstRest, kLongestRest);
  source.overtaken_until = now + source.overtaken_rest;
}

void Directory::EndGrant(const std::string& grant_id, GrantEnd end) {
  auto grant = grants_.find(grant_id);
  NodeState& source = nodes_.find(grant->second.source_node)->second;
  std::erase(source.serving, &grant->second);
  const auto uploads = source.uploads.find(grant->second.artifact_id);
  if (--uploads->second == 0) source.uploads.erase(uploads);
  std::erase(nodes_.find(grant->second.receiver_node)->second.receiving, &grant->second);
  ended_.push_back({.grant = std::move(grant->second), .end = end});
  grants_.erase(grant);
}

void Directory::EndGrants(const std::vector<std::string>& grant_ids, GrantEnd end, SteadyTime now) {
  for (const std::string& grant_id : grant_ids) {
    const Grant& grant = grants_.find(grant_id)->second;
    TellRevoked(grant.source_node, grant_id, now);
    TellRevoked(grant.receiver_node, grant_id, now);
    EndGrant(grant_id, end);
  }
}

// Repeated in each heartbeat for a while, since an answer can be lost; both ends take it any number of times.
void Directory::TellRevoked(const std::string& node_id, const std::string& grant_id, SteadyTime now) {
  auto node = nodes_.find(node_id);
  if (node != nodes_.end()) node->second.revoked[grant_id] = now + node->second.ttl;
}

}  // namespace tensorcast::global_store
