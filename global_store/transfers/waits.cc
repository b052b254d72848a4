// What a receiver may wait for when no source can give it bytes now: replicas that fill, nodes that are yet
// to report what they hold, files of an import that another node reads.
//
// Replicas that fill may wait for each other. So what each receiver was told to wait for is kept, and it is
// told to wait for a node only where that one's own sources and waits lead, without the receiver, to a node
// that can make the bytes (Directory::IsRooted). So no chain of waits is closed.
#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "global_store/directory/directory.h"
#include "global_store/scheduler/scheduler.h"

namespace tensorcast::global_store {
namespace {

constexpr size_t kMaxNamed = 5;

// Receivers that wait ask again and again, and each time all replicas of the artifact are looked at: the more
// there are, the longer the pause.
constexpr absl::Duration kMinRetry = absl::Milliseconds(250);
constexpr absl::Duration kMaxRetry = absl::Seconds(10);
absl::Duration RetryAfter(size_t replicas) {
  return std::clamp(static_cast<int64_t>(replicas) * absl::Milliseconds(2), kMinRetry, kMaxRetry);
}
// Beside the time until it asks again: the call's own.
constexpr absl::Duration kAskingTime = absl::Seconds(1);
// A node that was told where to fill from reports its replica within that time, or never.
constexpr absl::Duration kReportTime = absl::Seconds(5);

// So long a receiver leaves the network to a daemon of its host that was given sources there, before it takes
// some itself: the bytes are to cross the network to each host once. It asks again after a pause as long as
// it has waited, at least the shortest: mostly the other's report comes within milliseconds.
constexpr absl::Duration kHostmatesTurn = absl::Milliseconds(500);
constexpr absl::Duration kShortestHostRetry = absl::Milliseconds(10);

std::string For(absl::Duration duration) {
  return absl::FormatDuration(absl::Trunc(duration, absl::Seconds(1)));
}

}  // namespace

// In this order: replicas that fill or are digested again, and nodes that will report; else files of the
// import that some node could read; else only what is out of reach is named, and there is no time to ask
// again.
void Directory::OfferToWait(const GrantRequest& request, NodeState& receiver, const SourceQuery& query,
                            size_t elsewhere, SteadyTime now, GrantOffer& offer) {
  Filling filling = FillingElsewhere(request, receiver, query, now);
  std::vector<std::string> reporting = NodesThatWillReport(receiver, now);
  std::ranges::move(AccusedElsewhere(request, receiver, query, now), std::back_inserter(reporting));
  Waiting waiting{.nodes = std::move(filling.nodes), .reports = !reporting.empty(), .until = now};
  offer.waiting_for = std::move(filling.names);
  offer.waiting_for.insert(offer.waiting_for.end(), reporting.begin(), reporting.end());
  if (offer.waiting_for.empty()) {
    waiting.nodes = OfferOrigins(request, receiver, query, now, offer);
    if (waiting.nodes.empty()) {
      std::ranges::move(NodesAwayWith(request.artifact_id, now), std::back_inserter(offer.waiting_for));
      std::ranges::move(UnreachableNodesWith(request, receiver, query),
                        std::back_inserter(offer.waiting_for));
      return;
    }
  }
  offer.retry_after = RetryAfter(elsewhere);
  waiting.until += 2 * offer.retry_after + kAskingTime;
  waiting_[request.artifact_id][request.receiver.node_id] = std::move(waiting);
}

const Directory::Waiting* Directory::FindWaiting(std::string_view artifact_id, std::string_view node_id,
                                                 SteadyTime now) const {
  const auto artifact = waiting_.find(artifact_id);
  if (artifact == waiting_.end()) return nullptr;
  const auto waiting = artifact->second.find(node_id);
  if (waiting == artifact->second.end()) return nullptr;
  const bool waits = waiting->second.until > now || FillsAt(artifact_id, node_id);
  return waits ? &waiting->second : nullptr;
}

bool Directory::FillsAt(std::string_view artifact_id, std::string_view node_id) const {
  bool fills = false;
  AddReplicasOf(artifact_id, std::string(node_id),
                [&fills](const SourceRef& own) { fills |= own.replica->IsFilling(); });
  return fills;
}

void Directory::EndWaiting(std::string_view artifact_id, std::string_view node_id) {
  const auto artifact = waiting_.find(artifact_id);
  if (artifact == waiting_.end()) return;
  if (const auto node = artifact->second.find(node_id); node != artifact->second.end()) {
    artifact->second.erase(node);
  }
  if (artifact->second.empty()) waiting_.erase(artifact);
}

bool Directory::HasOwnWay(std::string_view artifact_id, const NodeState& node, SteadyTime now) const {
  const std::string& node_id = node.facts.node_id;
  if (const auto beginning = beginning_.find(artifact_id); beginning != beginning_.end()) {
    const auto begins = beginning->second.find(node_id);
    if (begins != beginning->second.end() && begins->second > now) return true;
  }
  if (const auto artifact = artifacts_.find(artifact_id); artifact != artifacts_.end()) {
    const auto reading = artifact->second.readings.find(node_id);
    const bool reads = reading != artifact->second.readings.end() && reading->second.until > now;
    if (reads && reading->second.error.empty()) return true;
  }
  bool found = false;
  AddReplicasOf(artifact_id, node_id, [&](const SourceRef& own) { found |= !own.replica->IsPartial(); });
  return found;
}

bool Directory::HasTurn(const NodeState& node, std::string_view artifact_id, SteadyTime now) const {
  return std::ranges::any_of(node.receiving, [&](const Grant* grant) {
    return grant->artifact_id == artifact_id && grant->destination.kind == LocationKind::kCpu &&
           now - grant->issued < kHostmatesTurn &&
           !SameHost(node.end, nodes_.find(grant->source_node)->second.end);
  });
}

// A turn begins with a grant over the network and ends by time alone, whatever becomes of it, so none waits
// for long for one that stopped, and of those that wait one takes the next: what it is given begins a turn.
// A receiver counts its own time too, so that no number of turns of others keeps it waiting.
std::optional<Directory::HostmatePulls> Directory::FindPullingHostmate(const GrantRequest& request,
                                                                       NodeState& receiver,
                                                                       const SourceQuery& query,
                                                                       SteadyTime now) {
  const auto host = nodes_of_host_.find(receiver.end.host_id);
  if (query.filling_lanes.empty() || host == nodes_of_host_.end()) return std::nullopt;
  // One that was slow until now counts all the same: it was given sources since.
  const auto was_given_up = [&](const std::string& node_id) {
    bool given_up = false;
    AddReplicasOf(request.artifact_id, node_id, [&](const SourceRef& source) {
      given_up |= Names(request.excluded_replicas, source.replica->facts);
    });
    return given_up;
  };
  for (const std::string& node_id : host->second) {
    const NodeState& node = nodes_.find(node_id)->second;
    const SourceCandidate candidate{.replica_id = "", .end = &node.end, .filling = true};
    if (&node == &receiver || node.unreachable || !CanUse(query, candidate)) continue;
    if (!HasTurn(node, request.artifact_id, now) || was_given_up(node_id)) continue;
    HeldReplica* own = FindDestination(request, receiver);
    if (own == nullptr) return HostmatePulls{node.facts.name, kShortestHostRetry};
    if (own->hostmates_until == SteadyTime::InfiniteFuture()) own->hostmates_until = now + kHostmatesTurn;
    if (now >= own->hostmates_until) return std::nullopt;
    const absl::Duration left = own->hostmates_until - now;
    return HostmatePulls{node.facts.name,
                         std::min(left, std::max(kShortestHostRetry, kHostmatesTurn - left))};
  }
  return std::nullopt;
}

Directory::Filling Directory::FillingElsewhere(const GrantRequest& request, const NodeState& receiver,
                                               const SourceQuery& query, SteadyTime now) const {
  Filling filling;
  ForEachReplica(request.artifact_id, [&](const NodeState& node, const HeldReplica& held) {
    if (&node == &receiver || node.unreachable || !held.IsFilling()) return true;
    RootSearch search{.receiver = &receiver, .now = now};
    bool rooted = IsRooted(node, request.artifact_id, search);
    // One that pulls from partial replicas may wait beside that.
    if (!rooted && FindWaiting(request.artifact_id, node.facts.node_id, now) != nullptr) {
      search.seen.clear();
      rooted = LeadsOn(node, request.artifact_id, search);
    }
    if (!rooted) return true;
    const SourceCandidate candidate{
        .replica_id = held.facts.id, .end = &node.end, .place = held.facts.location.kind};
    if (!CanUse(query, candidate)) return true;
    filling.Add(node, "fills");
    return filling.names.size() < kMaxNamed;
  });
  AddBeginning(request, receiver, query, now, filling);
  return filling;
}

void Directory::AddBeginning(const GrantRequest& request, const NodeState& receiver, const SourceQuery& query,
                             SteadyTime now, Filling& filling) const {
  auto beginning = beginning_.find(request.artifact_id);
  if (beginning == beginning_.end()) return;
  for (const auto& [node_id, until] : beginning->second) {
    auto node = nodes_.find(node_id);
    if (node_id == request.receiver.node_id || until <= now || node == nodes_.end()) continue;
    if (node->second.unreachable) continue;
    const SourceCandidate candidate{.replica_id = "", .end = &node->second.end};
    RootSearch search{.receiver = &receiver, .now = now};
    if (!CanUse(query, candidate) || !IsRooted(node->second, request.artifact_id, search)) continue;
    if (filling.names.size() == kMaxNamed) return;
    filling.Add(node->second, "begins to fill");
  }
}

// Between the grant and the node's report of its new replica no receiver would see that one is coming.
void Directory::NoteBeginning(const GrantRequest& request, SteadyTime now) {
  beginning_[request.artifact_id][request.receiver.node_id] = now + kReportTime;
}

void Directory::NoteReported(const std::string& node_id, const std::string& artifact_id) {
  auto beginning = beginning_.find(artifact_id);
  if (beginning == beginning_.end()) return;
  beginning->second.erase(node_id);
  if (beginning->second.empty()) beginning_.erase(beginning);
}

std::vector<std::string> Directory::NodesThatWillReport(const NodeState& receiver, SteadyTime now) const {
  std::vector<std::string> names;
  if (now < awaited_until_) {
    names.push_back(
        absl::StrCat("nodes that did not register again yet since the global store was started (for ",
                     For(awaited_until_ - now + absl::Seconds(1)), " more at most)"));
  }
  for (const auto& [node_id, node] : nodes_) {
    if (&node == &receiver || node.reported || now - node.registered > node.ttl) continue;
    names.push_back(absl::StrCat("the inventory of ", node.facts.name, ", which has just registered"));
    if (names.size() == kMaxNamed) break;
  }
  return names;
}

std::vector<std::string> Directory::NodesAwayWith(std::string_view artifact_id, SteadyTime now) const {
  std::vector<std::string> names;
  for (const auto& [node_id, away] : away_) {
    if (!away.artifacts.contains(artifact_id)) continue;
    names.push_back(
        absl::StrCat("node ", away.name, ", which has a copy and is away for ", For(now - away.since)));
    if (names.size() == kMaxNamed) break;
  }
  return names;
}

std::vector<std::string> Directory::UnreachableNodesWith(const GrantRequest& request,
                                                         const NodeState& receiver,
                                                         const SourceQuery& query) const {
  std::set<std::string> names;
  const auto add = [&](const NodeState& node, LocationKind place) {
    const SourceCandidate candidate{.replica_id = "", .end = &node.end, .place = place};
    if (&node == &receiver || !node.unreachable || !CanUse(query, candidate)) return;
    names.insert(absl::StrCat("node ", node.facts.name,
                              ", which has a copy and says that no process answers at ",
                              node.facts.grpc_address));
  };
  ForEachReplica(request.artifact_id, [&](const NodeState& node, const HeldReplica& held) {
    const bool excluded = Names(request.excluded_replicas, held.facts);
    if (!excluded && (held.IsSource() || held.IsFilling())) add(node, held.facts.location.kind);
    return names.size() < kMaxNamed;
  });
  const ArtifactState& artifact = artifacts_.find(request.artifact_id)->second;
  for (const Origin& origin : LiveOrigins(artifact)) {
    if (names.size() == kMaxNamed) break;
    if (!IsGone(artifact, origin)) add(nodes_.find(origin.node_id)->second, LocationKind::kCpu);
  }
  return {names.begin(), names.end()};
}

Directory::HeldReplica* Directory::FindDestination(const GrantRequest& request, NodeState& receiver) {
  auto holders = holders_.find(request.artifact_id);
  if (holders == holders_.end()) return nullptr;
  const std::string& node_id = receiver.facts.node_id;
  for (auto it = holders->second.lower_bound({node_id, ""});
       it != holders->second.end() && it->first == node_id; ++it) {
    HeldReplica& held = receiver.replicas.find(it->second)->second;
    if (held.facts.location == request.destination && held.IsFilling()) return &held;
  }
  return nullptr;
}

}  // namespace tensorcast::global_store
