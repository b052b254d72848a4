// Makes the scheduler's input for one request: the query, and the replicas that may be sources.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "global_store/scheduler/link_rates.h"
#include "global_store/transfers/transfers.h"

namespace tensorcast::global_store {
namespace {

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

// So many sources a transfer is given at first, of those that are there; the others when it looks again, when
// those that came after it are there too and need not all be fed by those that came before.
constexpr uint32_t kFirstSources = 2;

// A chunk has one source at a time.
bool IsOneChunk(const ArtifactRecord& artifact) {
  return artifact.image_bytes > 0 && artifact.image_bytes <= artifact.chunk_bytes;
}

}  // namespace

SourceQuery Transfers::QueryOf(const GrantRequest& request, const Node& receiver,
                               const ArtifactRecord& artifact) const {
  SourceQuery query{.receiver = &receiver.end,
                    .destination = request.destination.kind,
                    .required_lane = request.required_lane,
                    .upload_slots = options_.soft_grants_per_source,
                    .filling_lanes = options_.filling_lanes};
  bool moves = false;  // one of its sources at least
  uint32_t slow_links = 0;
  for (const std::string& grant_id : request.held_grants) {
    const Grant* grant = grants_.Find(grant_id);
    if (grant == nullptr || grant->receiver_node != request.receiver.node_id) continue;
    const LaneEnd& source = nodes_.Find(grant->source_node)->end;
    const HeldReplica& replica = *inventory_.Find(grant->source_node, grant->replica_id);
    const bool slow = Names(request.slow_replicas, replica.facts);
    moves |= !slow;
    // It has what it has, and a receiver that has nothing else needs a source yet.
    if (replica.IsPartial()) continue;
    query.has_source = true;
    slow_links += HasSlowLink(receiver.end, source) ? 1 : 0;
    query.has_source_on_host |= !slow && SameHost(receiver.end, source);
  }
  query.stalls = query.has_source && !moves;
  query.has_source |= !request.held_origin.empty();
  const auto held = static_cast<uint32_t>(request.held_grants.size());
  // Each time that it looks: fast ones in the place of the slow ones, which go on with the little that they
  // have.
  query.wanted_slow = request.sources - std::min(request.sources, held);
  query.wanted = query.wanted_slow + std::min(slow_links, kMaxSlowLinks);
  if (!query.has_source) query.wanted = std::min(query.wanted, IsOneChunk(artifact) ? 1 : kFirstSources);
  return query;
}

// From the nearest scope to the widest, of each a few, in rows from places that depend on the receiver and on
// how often it asked. Where none of all those can be used, and only then, all are visited: what is odd
// about this receiver (its lanes, what it tried already) may leave it few.
Transfers::Candidates Transfers::FindCandidates(const Asking& asking) const {
  const GrantRequest& request = asking.request;
  const Node& receiver = asking.receiver;
  const SourceQuery& query = asking.query;
  const SteadyTime now = asking.now;
  const std::string& artifact_id = request.artifact_id;
  Candidates found;
  // `seen` begins with the replicas that the receiver holds grants of, so that none of them is offered again.
  absl::flat_hash_set<const HeldReplica*> seen;
  // The receiver's host brings nothing just now, so neither does a hostmate that it does not hold yet, unless
  // that one has just begun to pull for the host.
  bool host_stalls = false;
  for (const std::string& grant_id : request.held_grants) {
    const Grant* grant = grants_.Find(grant_id);
    if (grant == nullptr) continue;
    const HeldReplica* replica = inventory_.Find(grant->source_node, grant->replica_id);
    seen.insert(replica);
    host_stalls |= Names(request.slow_replicas, replica->facts) &&
                   SameHost(receiver.end, nodes_.Find(grant->source_node)->end);
  }
  uint32_t looks = 0;
  inventory_.ForEachOf(artifact_id, request.receiver.node_id,
                       [&looks](const SourceRef& own) { looks += own.replica->looks.looks(); });
  const std::string salt = absl::StrCat(request.receiver.node_id, "/", looks, "/", request.held_grants.size(),
                                        "/", request.excluded_replicas.size() + request.slow_replicas.size());
  const uint64_t from = SourceIndex::Spread(salt);
  size_t usable = 0;
  Waits::Search search{.receiver = &receiver, .now = now};
  const auto add = [&](const SourceRef& source) {
    const std::string& id = source.replica->facts.id;
    if (!source.replica->CanServe()) return;
    if (source.node == &receiver || source.node->unreachable) return;
    if (Names(request.excluded_replicas, source.replica->facts) || !seen.insert(source.replica).second) {
      return;
    }
    const bool filling = !source.replica->IsSource();
    const bool stalls =
        host_stalls && filling && SameHost(receiver.end, source.node->end) && !HasTurn(*source.node, asking);
    const Grants::OfNode& grants = grants_.Of(source.node->facts.node_id);
    SourceCandidate candidate{.replica_id = id,
                              .end = &source.node->end,
                              .place = source.replica->facts.location.kind,
                              .filling = filling,
                              .partial = source.replica->IsPartial(),
                              .slow = stalls || Names(request.slow_replicas, source.replica->facts),
                              .draining = source.node->draining,
                              .overtaken = now < grants.overtaken_until,
                              .uploads = grants.UploadsOf(artifact_id),
                              .active_grants = static_cast<uint32_t>(grants.serving.size()),
                              // The distance from this receiver's place in the order. It wraps around, as the
                              // order does.
                              .tie = SourceIndex::Spread(id) - from};
    if (filling) {
      // `rooted` keeps what was found for other candidates. `seen` is the limit of one search and begins
      // empty.
      search.seen.clear();
      candidate.rooted = !candidate.partial && waits_.IsRooted(*source.node, artifact_id, search);
      // Without a root it can give what it has, once.
      const bool has_some = source.replica->facts.chunks_present > 0;
      if (!candidate.rooted && (candidate.slow || !has_some)) return;
    }
    usable += CanUse(query, candidate) ? 1 : 0;
    found.candidates.push_back(candidate);
    found.sources.push_back(source);
  };
  // Those with an upload slot free, and a few others for when there are none such.
  const auto sample = [&](const SourceIndex::Set& sources) {
    auto next = sources.end();
    size_t free = 0;
    size_t full = 0;
    for (size_t i = 0; i < std::min(kMaxVisited, sources.size()) && free < kSample; ++i, ++next) {
      if (i == 0 || (i % kRow == 0 && sources.size() > kMaxVisited)) {
        next = sources.lower_bound({from + i / kRow * kToNextRow, ""});
      }
      if (next == sources.end()) next = sources.begin();
      const uint32_t uploads = grants_.Of(next->second.node->facts.node_id).UploadsOf(artifact_id);
      size_t& of_kind = uploads < options_.soft_grants_per_source ? free : full;
      if (&of_kind == &full && full == kSampleOfFull) continue;
      ++of_kind;
      add(next->second);
    }
  };
  const auto all = [&](const SourceIndex::Set& sources) {
    for (const auto& [key, source] : sources) add(source);
  };
  for (const std::string& node_id : nodes_.OnHost(receiver.end.host_id)) {
    inventory_.ForEachOf(artifact_id, node_id, add);
  }
  for (const std::string& scope : SourceIndex::ScopesOf(artifact_id, receiver.end)) {
    const SourceIndex::Scope* sources = inventory_.sources().Find(scope);
    if (sources == nullptr) continue;
    sample(sources->ready);
    if (!query.filling_lanes.empty()) sample(sources->filling);
  }
  const SourceIndex::Scope* sources = inventory_.sources().Find(artifact_id);
  if (usable == 0 && sources != nullptr) {
    all(sources->ready);
    if (!query.filling_lanes.empty()) all(sources->filling);
  }
  found.elsewhere = inventory_.HoldersOf(artifact_id).size();
  inventory_.ForEachOf(artifact_id, request.receiver.node_id, [&](const SourceRef&) { --found.elsewhere; });
  return found;
}

bool Transfers::CanServeFilling(const Node& node, const Asking& asking) const {
  const SourceCandidate candidate{.replica_id = "", .end = &node.end, .filling = true};
  return &node != &asking.receiver && !node.unreachable && CanUse(asking.query, candidate);
}

// A node with a replica that the receiver gave up is left out. So the first receiver that notices the end of
// its zone's puller takes the puller's place, before the store itself hears of that end.
const Grant* Transfers::FindZonePuller(const Asking& asking, SteadyTime issued_after) const {
  const GrantRequest& request = asking.request;
  size_t visited = 0;
  for (const Grant* grant : grants_.Into(asking.receiver.end.zone, request.artifact_id)) {
    if (++visited > kMaxVisited) break;
    if (grant->issued <= issued_after || grant->destination.kind != LocationKind::kCpu) continue;
    const Node& node = *nodes_.Find(grant->receiver_node);
    if (!CanServeFilling(node, asking) || HasSlowLink(asking.receiver.end, node.end)) continue;
    const bool given_up = HasReplicaNamed(request.excluded_replicas, node, request) ||
                          HasReplicaNamed(request.slow_replicas, node, request);
    if (!given_up) return grant;
  }
  return nullptr;
}

ZoneRole Transfers::RoleInZone(const Asking& asking, const Candidates& candidates) const {
  const LaneEnd& receiver = asking.receiver.end;
  if (receiver.zone.empty()) return ZoneRole::kFree;
  const auto has_image = [&](const SourceCandidate& source) {
    return !source.filling && !source.slow && !source.draining && !source.overtaken &&
           source.end->zone == receiver.zone && CanUse(asking.query, source);
  };
  if (std::ranges::any_of(candidates.candidates, has_image)) return ZoneRole::kServed;
  if (FindZonePuller(asking, SteadyTime::InfinitePast()) != nullptr) return ZoneRole::kServed;
  bool pulls_already = false;
  for (const Grant* grant : grants_.Of(asking.request.receiver.node_id).receiving) {
    if (grant->artifact_id != asking.request.artifact_id) continue;
    pulls_already |= !grant->into_zone.empty();
    // The candidates do not include the replicas that the receiver holds grants of.
    const HeldReplica& held = *inventory_.Find(grant->source_node, grant->replica_id);
    const bool in_zone = nodes_.Find(grant->source_node)->end.zone == receiver.zone;
    if (in_zone && held.IsSource() && !Names(asking.request.slow_replicas, held.facts)) {
      return ZoneRole::kServed;
    }
  }
  return pulls_already ? ZoneRole::kFree : ZoneRole::kPuller;
}

bool Transfers::HasReplicaNamed(const std::vector<std::string>& names, const Node& node,
                                const GrantRequest& request) const {
  bool named = false;
  inventory_.ForEachOf(request.artifact_id, node.facts.node_id,
                       [&](const SourceRef& source) { named |= Names(names, source.replica->facts); });
  return named;
}

bool Transfers::HasTurn(const Node& node, const Asking& asking) const {
  const std::vector<const Grant*>& receiving = grants_.Of(node.facts.node_id).receiving;
  return std::ranges::any_of(receiving, [&](const Grant* grant) {
    return grant->artifact_id == asking.request.artifact_id &&
           grant->destination.kind == LocationKind::kCpu &&
           asking.now - grant->issued < HostmatePatience::kTurn &&
           !SameHost(node.end, nodes_.Find(grant->source_node)->end);
  });
}

// A turn begins with a grant over the network and ends by time alone, whatever becomes of it, so none waits
// for long for one that stopped, and of those that wait one takes the next: what it is given begins a turn.
std::optional<Transfers::Mate> Transfers::FindPullingMate(const Asking& asking) {
  const GrantRequest& request = asking.request;
  if (asking.query.filling_lanes.empty()) return std::nullopt;
  const Node* pulling = nullptr;
  bool of_host = false;
  for (const std::string& node_id : nodes_.OnHost(asking.receiver.end.host_id)) {
    const Node& node = *nodes_.Find(node_id);
    // One that was slow until now counts all the same: it was given sources since.
    if (!CanServeFilling(node, asking) || !HasTurn(node, asking) ||
        HasReplicaNamed(request.excluded_replicas, node, request)) {
      continue;
    }
    pulling = &node;
    of_host = true;
    break;
  }
  if (pulling == nullptr) {
    const Grant* grant = FindZonePuller(asking, asking.now - HostmatePatience::kTurn);
    if (grant == nullptr) return std::nullopt;
    pulling = nodes_.Find(grant->receiver_node);
  }
  HeldReplica* own = FindDestination(request);
  const std::optional<absl::Duration> pause =
      own == nullptr ? HostmatePatience::kShortestPause : own->hostmates.Wait(asking.now);
  if (!pause.has_value()) return std::nullopt;
  return Mate{.name = pulling->facts.name, .of_host = of_host, .retry_after = *pause};
}

}  // namespace tensorcast::global_store
